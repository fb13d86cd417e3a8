"""The protocol module is what its .proto makes, and says what Oxia's own says."""

import importlib.resources
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from storage.metadata.oxia import wire_pb2

ROOT = Path(__file__).parents[3]
PROTO = "storage/metadata/oxia/wire.proto"


def protoc(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True, cwd=ROOT)


def test_the_generated_modules_are_those_of_the_proto(tmp_path: Path) -> None:
    protoc("-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO)

    for name in ("wire_pb2.py", "wire_pb2.pyi"):
        assert (tmp_path / "storage/metadata/oxia" / name).read_text() == (ROOT / "storage/metadata/oxia" / name).read_text(), (
            f"make it anew: python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. {PROTO}"
        )


def test_names_numbers_and_types_are_those_of_oxia(tmp_path: Path) -> None:
    official = importlib.resources.files("oxia") / "internal/proto/client.proto"
    (tmp_path / "client.proto").write_text(official.read_text())
    protoc(f"-I{tmp_path}", f"--descriptor_set_out={tmp_path / 'client.bin'}", "client.proto")
    (theirs,) = FileDescriptorSet.FromString((tmp_path / "client.bin").read_bytes()).file
    ours = FileDescriptorProto()
    wire_pb2.DESCRIPTOR.CopyToProto(ours)

    assert ours.package == theirs.package
    assert facts(ours) <= facts(theirs)
    assert len(facts(ours)) > 60


def facts(file: FileDescriptorProto) -> set[tuple[object, ...]]:
    """What is on the wire."""
    found: set[tuple[object, ...]] = set()
    for message in file.message_type:
        for entry in (message, *message.nested_type):
            found |= {
                (message.name, entry.name, field.name, field.number, field.type, field.label, field.type_name, field.proto3_optional)
                for field in entry.field
            }
    for enum in file.enum_type:
        found |= {(enum.name, value.name, value.number) for value in enum.value}
    for service in file.service:
        found |= {
            (service.name, method.name, method.input_type, method.output_type, method.client_streaming, method.server_streaming)
            for method in service.method
        }
    return found
