"""A group whose members elect one of them, as the instances of a Schema Registry do: protocol type `sr`, and not one partition.

Schema Registry is not on Maven Central; Election.java extends the class of the Java client that it extends.
What happens against Apache Kafka is what has to happen against Forebay: the same test runs against both.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.compat.frameworks.brokers import AGAINST, WARNED_OF, Against, recorded, until
from tests.compat.frameworks.jvm import complaints, program

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(180)]

WITHIN_S: Final = 60.0
GROUP: Final = "schema-registry"
ONE, OTHER = '{"host": "registry-0"}', '{"host": "registry-1"}'


@pytest.mark.parametrize("against", AGAINST)
def test_members_of_another_protocol_type_elect_one_and_then_another(against: Against, tmp_path: Path) -> None:
    with recorded(against, tmp_path) as broker, program("Election", broker.bootstrap, GROUP, log=tmp_path / "election.log") as members:
        until(lambda: members.say("status"), lambda found: found["elected"] == [ONE, ONE], WITHIN_S)
        both = broker.group(GROUP)
        members.say("close 0")
        until(lambda: members.say("status"), lambda found: found["elected"] == ["", OTHER], WITHIN_S)
        one = broker.group(GROUP)
        members.end()
        none = until(lambda: broker.group(GROUP), lambda group: not group.members, WITHIN_S)
        disliked = broker.complaints()

    assert (both.state, both.protocol_type, both.protocol) == ("Stable", "sr", "v0")
    assert sorted(both.members) == [(ONE.encode(), ONE.encode()), (OTHER.encode(), ONE.encode())]
    assert one.members == [(OTHER.encode(), OTHER.encode())]
    assert (none.state, none.protocol_type) == ("Empty", "sr")
    assert complaints(tmp_path / "election.log", WARNED_OF[against]) == []
    assert disliked == []
