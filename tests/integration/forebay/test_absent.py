import os
import subprocess
import sys

from forebay.imports import import_without_extras


def run(code: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # hypothesis is there
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60, env=environment).stdout


def test_libraries_are_imported_without_what_they_would_only_decorate_with_and_others_may_import_that_later() -> None:
    loaded = "print(sorted({'rich', 'hypothesis', 'structlog', 'kio'} & set(sys.modules)))"
    code = f"import sys; from forebay.imports import import_without_extras as i; i(); {loaded}; import rich.console, hypothesis; {loaded}"

    assert run(code).splitlines() == ["['kio', 'structlog']", "['hypothesis', 'kio', 'rich', 'structlog']"]


def test_what_is_loaded_already_stays() -> None:
    import hypothesis
    import rich

    import_without_extras()

    assert sys.modules["rich"] is rich
    assert sys.modules["hypothesis"] is hypothesis
