"""What is imported when, in processes of their own."""

import subprocess
import sys


def test_commands_of_a_client_do_not_wait_for_the_brokers_modules() -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from forebay.cli import application\n"
        "CliRunner().invoke(application, ['group', 'lag', 'g', '-b', '127.0.0.1:1'])\n"
        "print([name for name in ('aiohttp', 'kio', 'pydantic', 'rich') if name in sys.modules])\n"
        "print([name for name in sys.modules if name.startswith(('broker', 'storage'))])\n"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)

    assert loaded.stdout.split("\n")[:2] == ["[]", "[]"]


def test_the_sdk_that_is_slow_to_import_is_imported_when_it_is_needed() -> None:
    program = """
import asyncio, os, random, sys
os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
from runtime.clock import SystemClock
from runtime.frames import Account, make_frame
from runtime.telemetry import Telemetry
from storage.objects.s3.location import parse_s3_url
from storage.objects.s3.store import open_s3
async def main():
    location = parse_s3_url("s3://bucket?endpoint=http://127.0.0.1:1")
    store = await open_s3(location, client="obstore", clock=SystemClock(), chance=random.Random(), telemetry=Telemetry())
    await store.close()
asyncio.run(main())
assert not {"boto3", "botocore", "aiobotocore", "aioboto3"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
