"""Every key of the metadata store, in one place (docs/internals/design/keys.md). Values: storage/formats.

    llog/cluster                                            cluster id, format level          put-if-absent, then CAS
    llog/topics/{name}                                      the topic                         CAS
    llog/topic-ids/{topic_id}                               its name, then that it is deleted  put-if-absent, then any
    llog/{topic_id}/partitions/{p:05}/meta/control          THE record of the partition       CAS only
    llog/{topic_id}/partitions/{p:05}/index/{end:020}       chunk of entries                  put-if-absent
    llog/{topic_id}/partitions/{p:05}/index/!{ulid}         proves that a list is fresh       ephemeral, put once
    llog/{topic_id}/partitions/{p:05}/segments/{end:020}    segment entry                     put-if-absent
    llog/{topic_id}/partitions/{p:05}/segments/!{ulid}      proves that a list is fresh       ephemeral, put once
    llog/{topic_id}/partitions/{p:05}/producers/{page}      a page of producer states         put-if-absent
    llog/{topic_id}/partitions/{p:05}/meta/compaction       a compaction under way            CAS
    llog/{topic_id}/partitions/{p:05}/meta/compactor-claim  who compacts it                   ephemeral
    llog/early/{object_id}-{position:010}                   bytes of an object that is stored later  put-if-absent
    llog/brokers/{id:010}                                   a live broker                     ephemeral
    llog/brokers/w{session}-{n}                             proves that a list is fresh       ephemeral, put once
    llog/compactors/{ulid}                                  a live compactor                  ephemeral
    llog/probes/{id:010}                                    shows that writes succeed         put and removed in one write
    llog/probes/doctor-{ulid}                               the same, of `forebay doctor`     ephemeral, CAS
    llog/probes/age-{ulid}                                  proves that a read is fresh       ephemeral, put once
    llog/collections                                        how often objects were deleted    CAS
    llog/producer-ids                                       the next block of producer ids    CAS
    llog/zone-secret                                        signs requests between brokers    put-if-absent
    llog/coordinators/{slot:02}                             who coordinates that slot         ephemeral
    llog/groups/{group}                                     a consumer group                  CAS
    llog/groups/{group}/topics/{page:05}                    more topics of its offsets        CAS
    llog/groups/{group}/offsets/{topic_id}/{p:05}           an offset that it committed       CAS

Every key of a partition has the partition key `{topic_id}/{p}`, an early page that of a partition with bytes in it, every key of a group
`coordinators/{slot:02}`, `age-{ulid}` that of what is read with it; all others have `llog`.
A group's name is percent-encoded as in a URL, and an empty one is `%`.
"""

from collections.abc import Callable
from urllib.parse import quote, unquote

from runtime.ulid import decode_ulid
from storage.metadata.port import Key, children_of
from storage.vocabulary import ObjectId, PartitionId, TopicId

ROOT = "llog"

CLUSTER = Key(f"{ROOT}/cluster", ROOT)
COLLECTIONS = Key(f"{ROOT}/collections", ROOT)
PRODUCER_IDS = Key(f"{ROOT}/producer-ids", ROOT)
ZONE_SECRET = Key(f"{ROOT}/zone-secret", ROOT)
BROKERS_PREFIX = f"{ROOT}/brokers/"
PROBES_PREFIX = f"{ROOT}/probes/"
TOPICS_PREFIX = f"{ROOT}/topics/"
EARLY_PREFIX = f"{ROOT}/early/"
EARLY_POSITION_DIGITS = 10
EARLY_POSITION_MAX = 10**EARLY_POSITION_DIGITS - 1
TRIES_PER_SHARD = 64
"""Made-up partition keys that show no new shard, for each that is known and one more, before there are said to be no others."""
MANIFEST_SUFFIX = "/meta/control"
"""The key of the partition manifest keeps its first name."""


def early_page(object_id: ObjectId, position: int, partition_key: str) -> Key:
    """On the shard of the partitions that have their bytes in it."""
    return Key(f"{EARLY_PREFIX}{object_id}-{position:010}", partition_key)


def early_pages(partition_key: str) -> tuple[Key, str]:
    """The range of all early pages on the shard of `partition_key`."""
    start, end = children_of(f"{ROOT}/early")
    return Key(start, partition_key), end


def shard_keys(shard_of: Callable[[str], int]) -> list[str]:
    """A partition key on each shard, of which there is no list. One with a much smaller share than others may be left out."""
    found: dict[int, str] = {}
    number = since = 0
    while since < TRIES_PER_SHARD * (len(found) + 1):
        key = f"early/{number}"
        number, since = number + 1, since + 1
        if found.setdefault(shard_of(key), key) == key:
            since = 0
    return list(found.values())


def place_of_page(path: str) -> tuple[ObjectId, int] | None:
    """The object, and the position in it, that the key of an early page names; None for a key that is none."""
    object_id, _, position = path.removeprefix(EARLY_PREFIX).rpartition("-")
    if not path.startswith(EARLY_PREFIX) or len(position) != EARLY_POSITION_DIGITS or not (position.isascii() and position.isdecimal()):
        return None
    try:
        decode_ulid(object_id)
    except ValueError:
        return None
    return ObjectId(object_id), int(position)


def topic(name: str) -> Key:
    return Key(f"{ROOT}/topics/{name}", ROOT)


def topics() -> tuple[Key, str]:
    start, end = children_of(f"{ROOT}/topics")
    return Key(start, ROOT), end


def topic_id(topic_id: str) -> Key:
    return Key(f"{ROOT}/topic-ids/{topic_id}", ROOT)


def topic_ids(first: str = "") -> tuple[Key, str]:
    """The range of keys that `topic_id` makes, from that of `first` on."""
    start, end = children_of(f"{ROOT}/topic-ids")
    return Key(f"{start}{first}", ROOT), end


def topic_of_id(path: str) -> TopicId:
    """The topic id whose record lives at `path`."""
    return TopicId(path.rsplit("/", 1)[1])


def broker(broker_id: int) -> Key:
    return Key(f"{ROOT}/brokers/{broker_id:010}", ROOT)


def brokers() -> tuple[Key, str]:
    """The range of keys that `broker` makes, which begin with a digit; it contains no sentinel."""
    return Key(BROKERS_PREFIX, ROOT), f"{BROKERS_PREFIX}:"


def broker_sentinel(session_id: int, number: int) -> Key:
    """A key beside the brokers that nobody has put before, for storage/catalog/brokers.py."""
    return Key(f"{BROKERS_PREFIX}w{session_id}-{number}", ROOT)


def brokers_and_sentinels() -> tuple[Key, str]:
    start, end = children_of(f"{ROOT}/brokers")
    return Key(start, ROOT), end


def beside_brokers(path: str) -> Key:
    """The key of a broker or a sentinel that was listed."""
    return Key(path, ROOT)


def is_broker(path: str) -> bool:
    """Whether `path` is the key of a broker's record."""
    return path.startswith(BROKERS_PREFIX) and path[len(BROKERS_PREFIX) :].isdecimal()


def compactor(name: str) -> Key:
    return Key(f"{ROOT}/compactors/{name}", ROOT)


def compactors() -> tuple[Key, str]:
    start, end = children_of(f"{ROOT}/compactors")
    return Key(start, ROOT), end


def probe(broker_id: int) -> Key:
    """What a broker puts and removes in one write, to see that the store takes writes."""
    return Key(f"{PROBES_PREFIX}{broker_id:010}", ROOT)


def doctor_probe(name: str) -> Key:
    """What `forebay doctor` writes, reads and removes to see whether conditions and sessions hold."""
    return Key(f"{ROOT}/probes/doctor-{name}", ROOT)


def age_sentinel(name: str, partition_key: str) -> Key:
    """On the shard of the records that are read with it (storage/metadata/version_watch.py)."""
    return Key(f"{ROOT}/probes/age-{name}", partition_key)


def coordinator(slot: int) -> Key:
    return Key(f"{ROOT}/coordinators/{slot:02}", ROOT)


def groups(slot: int) -> tuple[Key, str]:
    """All groups on the shard of that slot, those of other slots that lie there among them."""
    start, end = children_of(f"{ROOT}/groups")
    return Key(start, group_partition_key(slot)), end


def group_partition_key(slot: int) -> str:
    return f"coordinators/{slot:02}"


def group_name_bytes(name: str) -> int:
    """The length of a group's name as its keys have it."""
    return len(_quoted(name))


def group_of(path: str) -> str:
    """The name of the group whose record lives at `path`."""
    quoted = path.rsplit("/", 1)[1]
    return "" if quoted == "%" else unquote(quoted)


def _quoted(name: str) -> str:
    # `~` would sort outside of the range of groups, and `quote` leaves it as it is.
    return quote(name, safe="").replace("~", "%7E") or "%"


class GroupKeys:
    """The keys of one group: all of a slot lie on one shard."""

    __slots__ = ("group", "partition_key", "root")

    def __init__(self, name: str, slot: int) -> None:
        self.root = f"{ROOT}/groups/{_quoted(name)}"
        self.partition_key = group_partition_key(slot)
        self.group = Key(self.root, self.partition_key)

    def offset(self, partition: PartitionId) -> Key:
        return Key(f"{self.root}/offsets/{partition.topic_id}/{partition.partition:05}", self.partition_key)

    def offsets(self, topic_id: TopicId) -> tuple[Key, str]:
        """The range of keys of one topic."""
        start, end = children_of(f"{self.root}/offsets/{topic_id}")
        return Key(start, self.partition_key), end


class PartitionKeys:
    """The keys of one partition."""

    __slots__ = ("manifest", "partition_key")

    def __init__(self, partition: PartitionId) -> None:
        self.partition_key = f"{partition.topic_id}/{partition.partition}"
        self.manifest = Key(f"{ROOT}/{partition.topic_id}/partitions/{partition.partition:05}{MANIFEST_SUFFIX}", self.partition_key)

    @property
    def index_prefix(self) -> str:
        return f"{self._root}/index/"

    @property
    def segments_prefix(self) -> str:
        return f"{self._root}/segments/"

    @property
    def producers_prefix(self) -> str:
        return f"{self._root}/producers/"

    @property
    def _root(self) -> str:
        return self.manifest.path.removesuffix(MANIFEST_SUFFIX)

    def index(self, end: int) -> Key:
        return Key(f"{self.index_prefix}{end:020}", self.partition_key)

    def segment(self, end: int) -> Key:
        return Key(f"{self.segments_prefix}{end:020}", self.partition_key)

    def index_sentinel(self, name: str) -> Key:
        """Beside the chunks, before all of them: no reader comes across it (compactor/references.py)."""
        return Key(f"{self.index_prefix}!{name}", self.partition_key)

    def segment_sentinel(self, name: str) -> Key:
        return Key(f"{self.segments_prefix}!{name}", self.partition_key)

    @property
    def compaction(self) -> Key:
        return Key(f"{self._root}/meta/compaction", self.partition_key)

    @property
    def compactor_claim(self) -> Key:
        return Key(f"{self._root}/meta/compactor-claim", self.partition_key)

    def lists(self) -> list[tuple[Key, str]]:
        """The ranges of all keys that a partition may have any number of."""
        bounds = [children_of(f"{self._root}/{one}") for one in ("index", "segments", "producers")]
        return [(Key(start, self.partition_key), end) for start, end in bounds]

    def producer_page(self, name: str) -> Key:
        return Key(f"{self.producers_prefix}{name}", self.partition_key)

    def producer_pages(self) -> tuple[Key, str]:
        """All of them, garbage included."""
        start, end = children_of(self.producers_prefix.removesuffix("/"))
        return Key(start, self.partition_key), end


def partition_of_manifest(path: str) -> PartitionId | None:
    """The partition whose manifest lives at `path`; None for every other key."""
    parts = path.split("/")
    if len(parts) != 6 or parts[0] != ROOT or parts[2] != "partitions" or not path.endswith(MANIFEST_SUFFIX):
        return None
    return PartitionId(TopicId(parts[1]), int(parts[3]))
