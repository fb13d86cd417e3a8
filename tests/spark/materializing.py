"""A driver that may be killed: `python -m tests.spark.materializing BOOTSTRAP TOPIC FOLDER` writes a topic to a table of Delta Lake.

In batches of few records, from where the checkpoint in FOLDER is to the end. Then it prints every row of the table, a JSON array a line.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spark.session import SessionSettings, open_session

OFFSETS_PER_BATCH: Final = "20"
ENDED_WITHIN_S: Final = 120


def main(arguments: Sequence[str]) -> int:
    bootstrap, topic, given = arguments
    folder = Path(given)
    table = str(folder / "table")
    with open_session(SessionSettings(name="materializing", is_brief=True, has_delta=True, log_level="ERROR")) as spark:
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": OFFSETS_PER_BATCH,
            "failOnDataLoss": "true",
        }
        rows = (
            spark.readStream.format("kafka").options(**options).load().selectExpr("partition", "offset", "cast(value as string) as value")
        )
        writing = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        if not writing.start(table).awaitTermination(ENDED_WITHIN_S):
            return 1
        for row in spark.read.format("delta").load(table).collect():
            print(json.dumps(list(row)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
