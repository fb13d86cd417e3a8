"""A consumer group that says how far a query is: its offsets follow the query's, and no record is read by their help."""

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from spark.errors import JobFailed
from spark.kafka_admin import KafkaAdmin, KafkaCluster, KafkaPartition

AGAIN_AFTER_S: Final = 10.0
_ANSWER_WITHIN_MS: Final = 10_000
"""Nobody waits for a commit but the end of a job."""
Offsets = Mapping[KafkaPartition, int]


def goes_back(committed: Offsets, wanted: Offsets) -> list[str]:
    """Where a commit would set the group back, a phrase each."""
    return [
        f"{one} from {committed[one]} to {offset}" for one, offset in sorted(wanted.items()) if one in committed and offset < committed[one]
    ]


class GroupCommits:
    """Commits the newest offsets that it was handed, in a thread of its own, so that a query never waits for it.

    A group that is ahead of the query is left as it is: it is another query's, or the query was begun anew. What fails is said once, and
    tried again with what is newest then. `spark` has to outlive it.
    """

    def __init__(
        self, spark: SparkSession, cluster: KafkaCluster, group: str, *, again_after_s: float = AGAIN_AFTER_S, out: TextIO = sys.stderr
    ) -> None:
        patience = {"default.api.timeout.ms": str(_ANSWER_WITHIN_MS), "request.timeout.ms": str(_ANSWER_WITHIN_MS)}
        quick = KafkaCluster(bootstrap_servers=cluster.bootstrap_servers, client=patience | dict(cluster.client))
        self._connect: Callable[[], KafkaAdmin] = lambda: KafkaAdmin(spark, quick)
        self._admin: KafkaAdmin | None = None
        self._group = group
        self._again_after_s = again_after_s
        self._out = out
        self._changed = threading.Condition()
        self._wanted: dict[KafkaPartition, int] = {}
        self._is_ending = False
        self._said = ""
        self.commits = 0
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name=f"commits of {group}", daemon=True)
        self._thread.start()

    def hand_over(self, offsets: Offsets) -> None:
        """At once. Those that were handed over later are the ones that count."""
        with self._changed:
            self._wanted |= offsets
            self._changed.notify()

    def close(self, *, within_s: float) -> bool:
        """Try once more what is not committed yet, and end. Return whether all of it is."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(within_s)
        with self._changed:
            return not self._wanted and not self._thread.is_alive()

    def _run(self) -> None:
        has_failed = False
        while True:
            with self._changed:
                if not self._wanted and not self._is_ending:
                    self._changed.wait()
                elif has_failed and not self._is_ending:
                    self._changed.wait(self._again_after_s)
                wanted, is_last = dict(self._wanted), self._is_ending
            if wanted:
                has_failed = not self._commit(wanted)
            with self._changed:
                if wanted and not has_failed:
                    self._wanted = {one: offset for one, offset in self._wanted.items() if wanted.get(one) != offset}
                is_done = is_last and (has_failed or not self._wanted)
            if is_done:
                break
        if self._admin is not None:
            with contextlib.suppress(Py4JError):  # the session may have stopped meanwhile, and the client with it
                self._admin.close()

    def _commit(self, wanted: Offsets) -> bool:
        try:
            self._admin = self._admin or self._connect()
            if back := goes_back(self._admin.committed(self._group), wanted):
                self._fail(f"it is ahead of the query ({back[0]}). If that is as it should be: the job offsets, with --backwards")
                return False
            self._admin.commit(self._group, wanted)
        except (JobFailed, Py4JError) as error:
            self._fail(str(error))
            return False
        self.commits += 1
        if self._said:
            self._said = ""
            self._out.write(f"the group {self._group} follows the query again\n")
        return True

    def _fail(self, why: str) -> None:
        self.failures += 1
        if not self._said:
            self._said = why
            self._out.write(f"the group {self._group} does not follow the query: {why}. The query goes on.\n")
