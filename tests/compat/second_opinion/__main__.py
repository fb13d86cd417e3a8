"""Ask Apache Kafka and Forebay the same: `python -m tests.compat.second_opinion`, behind `make second-opinion`.

Records Kafka's answers, renews docs/reference/deviations.md, and says what differs without an explanation (exit code 1).
"""

import sys
import tempfile
from pathlib import Path

from services.kafka import running_kafka
from tests.compat.second_opinion.differences import differences
from tests.compat.second_opinion.page import PAGE, renewed, stale, unexplained
from tests.compat.second_opinion.probing import FOREBAY_SETTINGS, KAFKA_SETTINGS, probe_all
from tests.kit.recorded_answers import ANSWERS, written
from tests.kit.serving import serving


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kafka-") as folder, running_kafka(Path(folder), settings=KAFKA_SETTINGS) as kafka:
        theirs = probe_all(kafka.port)
    with serving(None, settings=FOREBAY_SETTINGS) as forebay:
        ours = probe_all(forebay.kafka_port)
    found = list(differences(theirs, ours))
    ANSWERS.write_text(written(theirs))
    PAGE.write_text(renewed(PAGE.read_text(), found))
    faults = [*unexplained(found), *(f"a deviation that is none any more: {one.api} {one.titles}" for one in stale(found))]
    sys.stdout.write("".join(f"{line}\n" for line in faults))
    sys.stdout.write(f"{len(theirs)} answers compared, {len(found)} fields differ, {len(faults)} without an explanation\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
