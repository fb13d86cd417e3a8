//! Plays the scenario of ../../README.md with rskafka: `compat-rskafka BOOTSTRAP PREFIX`.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rskafka::BackoffConfig;
use rskafka::client::controller::ControllerClient;
use rskafka::client::error::Error as KafkaError;
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::{Record, RecordAndOffset};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

const STEP_WITHIN: Duration = Duration::from_secs(30);
const PLAY_WITHIN: Duration = Duration::from_secs(120);
const RETRY_WITHIN: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_millis(50);
const CALL_WITHIN_MS: i32 = 10_000;
const FETCH_WAIT_MS: i32 = 500;
const FETCH_BYTES_MAX: i32 = 1024 * 1024;
const PARTITIONS: i32 = 3;
const RECORDS: usize = 60;
const LINES: usize = 20;
const FIRST_TIMESTAMP_MS: i64 = 1_600_000_000_000;
const CODECS: [(&str, Compression); 5] = [
    ("none", Compression::NoCompression),
    ("gzip", Compression::Gzip),
    ("snappy", Compression::Snappy),
    ("lz4", Compression::Lz4),
    ("zstd", Compression::Zstd),
];

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(bootstrap), Some(prefix)) = (arguments.next(), arguments.next()) else {
        return Err("BOOTSTRAP and PREFIX are needed".into());
    };
    let client = ClientBuilder::new(vec![bootstrap])
        .client_id("compat-rskafka")
        .backoff_config(BackoffConfig {
            max_backoff: Duration::from_secs(1),
            deadline: Some(RETRY_WITHIN),
            ..BackoffConfig::default()
        })
        .build()
        .await?;
    let controller = client.controller_client()?;
    let play = Play {
        client,
        controller,
        prefix,
    };
    if tokio::time::timeout(PLAY_WITHIN, play.all()).await.is_err() {
        eprintln!("not done within {PLAY_WITHIN:?}");
    }
    Ok(())
}

struct Play {
    client: Client,
    controller: ControllerClient,
    prefix: String,
}

impl Play {
    async fn all(&self) {
        step("create_existing_topic", self.create_existing_topic()).await;
        step("create_invalid_topic", self.create_invalid_topic()).await;
        step("produce", self.produce()).await;
        step("codecs", self.codecs()).await;
        step("consume", self.consume()).await;
        step("seek", self.seek()).await;
        step("offsets", self.offsets()).await;
        step("offsets_by_time", self.offsets_by_time()).await;
        step("delete_records", self.delete_records()).await;
        step("fetch_out_of_range", self.fetch_out_of_range()).await;
        step("message_too_large", self.message_too_large()).await;
        step("missing_topic", self.missing_topic()).await;
        step("delete_topic", self.delete_topic()).await;
        step("delete_missing_topic", self.delete_missing_topic()).await;
    }

    async fn create_existing_topic(&self) -> Outcome<Value> {
        refusal(
            self.controller
                .create_topic(self.named("records"), PARTITIONS, 1, CALL_WITHIN_MS)
                .await,
        )
    }

    async fn create_invalid_topic(&self) -> Outcome<Value> {
        let name = format!("{} bad!", self.prefix);
        refusal(
            self.controller
                .create_topic(name, 1, 1, CALL_WITHIN_MS)
                .await,
        )
    }

    async fn produce(&self) -> Outcome<Value> {
        let mut ends = Map::new();
        for partition in 0..PARTITIONS {
            let records = (partition as usize..RECORDS)
                .step_by(PARTITIONS as usize)
                .map(numbered)
                .collect();
            let offsets = self
                .partition("records", partition)
                .await?
                .produce(records, Compression::NoCompression)
                .await?;
            let last = offsets.last().ok_or("nothing was acknowledged")?;
            ends.insert(partition.to_string(), json!(last + 1));
        }
        Ok(Value::Object(ends))
    }

    async fn codecs(&self) -> Outcome<Value> {
        let topic = self.partition("codecs", 0).await?;
        let values = |name: &str| {
            (0..10)
                .map(|j| format!("{name}-{j}-{}", "x".repeat(100)))
                .collect::<Vec<_>>()
        };
        for (name, compression) in CODECS {
            topic
                .produce(values(name).into_iter().map(valued).collect(), compression)
                .await?;
        }
        let read: HashSet<_> = read_all(&topic)
            .await?
            .into_iter()
            .filter_map(|found| found.record.value)
            .collect();
        let count = |name: &str| {
            values(name)
                .iter()
                .filter(|value| read.contains(value.as_bytes()))
                .count()
        };
        Ok(Value::Object(
            CODECS
                .iter()
                .map(|(name, _)| (name.to_string(), json!(count(name))))
                .collect(),
        ))
    }

    async fn consume(&self) -> Outcome<Value> {
        let mut lines = Vec::new();
        for partition in 0..PARTITIONS {
            let records = read_all(&self.partition("records", partition).await?).await?;
            lines.extend(records.iter().map(|found| digest_line(partition, found)));
        }
        lines.sort();
        let digest: String = Sha256::digest(lines.concat())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(json!({"records": lines.len(), "digest": digest}))
    }

    async fn seek(&self) -> Outcome<Value> {
        let partition = self.partition("records", 1).await?;
        let (records, _) = partition
            .fetch_records(7, 1..FETCH_BYTES_MAX, FETCH_WAIT_MS)
            .await?;
        let first = records.first().ok_or("nothing was read")?;
        Ok(json!({"offset": first.offset, "key": text(first.record.key.as_deref())}))
    }

    async fn offsets(&self) -> Outcome<Value> {
        let partition = self.partition("records", 0).await?;
        let (earliest, latest) = (
            partition.get_offset(OffsetAt::Earliest).await?,
            partition.get_offset(OffsetAt::Latest).await?,
        );
        Ok(json!({"earliest": earliest, "latest": latest}))
    }

    async fn offsets_by_time(&self) -> Outcome<Value> {
        let partition = self.partition("records", 0).await?;
        let found = partition
            .get_offset(OffsetAt::Timestamp(at(FIRST_TIMESTAMP_MS + 6_001)))
            .await?;
        // -1 is the library's word for none.
        let none = match partition
            .get_offset(OffsetAt::Timestamp(at(1_700_000_000_000)))
            .await?
        {
            -1 => None,
            offset => Some(offset),
        };
        Ok(json!({"found": found, "none": none}))
    }

    async fn delete_records(&self) -> Outcome<Value> {
        let line = self.partition("line", 0).await?;
        line.produce(
            (0..LINES).map(|i| valued(format!("line-{i}"))).collect(),
            Compression::NoCompression,
        )
        .await?;
        line.delete_records(5, CALL_WITHIN_MS).await?;
        let earliest = line.get_offset(OffsetAt::Earliest).await?;
        Ok(json!({"low_watermark": earliest, "earliest": earliest}))
    }

    async fn fetch_out_of_range(&self) -> Outcome<Value> {
        refusal(
            self.partition("line", 0)
                .await?
                .fetch_records(1_000, 1..FETCH_BYTES_MAX, FETCH_WAIT_MS)
                .await,
        )
    }

    async fn message_too_large(&self) -> Outcome<Value> {
        let record = Record {
            value: Some(noise(300_000)),
            ..valued(String::new())
        };
        refusal(
            self.partition("records", 0)
                .await?
                .produce(vec![record], Compression::NoCompression)
                .await,
        )
    }

    async fn missing_topic(&self) -> Outcome<Value> {
        refusal(
            self.client
                .partition_client(self.named("nowhere"), 0, UnknownTopicHandling::Error)
                .await,
        )
    }

    async fn delete_topic(&self) -> Outcome<Value> {
        let name = self.named("grown");
        self.controller
            .create_topic(&name, 1, 1, CALL_WITHIN_MS)
            .await?;
        // The deadline is that of the step, here and below.
        while !self.is_listed(&name).await? {
            tokio::time::sleep(ASK_EVERY).await;
        }
        self.controller.delete_topic(&name, CALL_WITHIN_MS).await?;
        while self.is_listed(&name).await? {
            tokio::time::sleep(ASK_EVERY).await;
        }
        Ok(json!({"listed": false}))
    }

    async fn delete_missing_topic(&self) -> Outcome<Value> {
        refusal(
            self.controller
                .delete_topic(self.named("nowhere"), CALL_WITHIN_MS)
                .await,
        )
    }

    fn named(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    async fn partition(&self, topic: &str, partition: i32) -> Outcome<PartitionClient> {
        Ok(self
            .client
            .partition_client(self.named(topic), partition, UnknownTopicHandling::Retry)
            .await?)
    }

    async fn is_listed(&self, name: &str) -> Outcome<bool> {
        Ok(self
            .client
            .list_topics()
            .await?
            .iter()
            .any(|topic| topic.name == name))
    }
}

async fn step(name: &str, play: impl Future<Output = Outcome<Value>>) {
    let line = match tokio::time::timeout(STEP_WITHIN, play).await {
        Ok(Ok(saw)) => json!({"step": name, "saw": saw}),
        Ok(Err(error)) => json!({"step": name, "failed": error.to_string()}),
        Err(_) => json!({"step": name, "failed": format!("not done within {STEP_WITHIN:?}")}),
    };
    println!("{line}");
}

/// The broker's error under the protocol's name: the library has `TopicAlreadyExists`.
fn refusal<T>(answer: Result<T, KafkaError>) -> Outcome<Value> {
    match answer {
        Ok(_) => Err("it was not refused".into()),
        Err(KafkaError::ServerError { protocol_error, .. }) => {
            Ok(json!({"error": upper_snake(&format!("{protocol_error:?}"))}))
        }
        Err(error) => Err(error.into()),
    }
}

fn upper_snake(camel: &str) -> String {
    let mut name = String::new();
    for (position, letter) in camel.char_indices() {
        if letter.is_uppercase() && position > 0 {
            name.push('_');
        }
        name.extend(letter.to_uppercase());
    }
    name
}

/// All records that there are, from the earliest on.
async fn read_all(partition: &PartitionClient) -> Outcome<Vec<RecordAndOffset>> {
    let (mut next, end) = (
        partition.get_offset(OffsetAt::Earliest).await?,
        partition.get_offset(OffsetAt::Latest).await?,
    );
    let mut records = Vec::new();
    while next < end {
        let (fetched, _) = partition
            .fetch_records(next, 1..FETCH_BYTES_MAX, FETCH_WAIT_MS)
            .await?;
        if let Some(last) = fetched.last() {
            next = last.offset + 1;
        }
        records.extend(fetched);
    }
    Ok(records)
}

fn numbered(i: usize) -> Record {
    Record {
        key: Some(format!("key-{i}").into_bytes()),
        value: (i % 10 != 9).then(|| format!("value-{i}").into_bytes()),
        headers: BTreeMap::from([
            ("index".to_owned(), i.to_string().into_bytes()),
            ("empty".to_owned(), Vec::new()),
        ]),
        timestamp: at(FIRST_TIMESTAMP_MS + 1_000 * i as i64),
    }
}

fn valued(value: String) -> Record {
    Record {
        key: None,
        value: Some(value.into_bytes()),
        headers: BTreeMap::new(),
        timestamp: at(FIRST_TIMESTAMP_MS),
    }
}

fn at(timestamp_ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(timestamp_ms).expect("milliseconds of this century")
}

/// Bytes that no codec makes smaller (xorshift).
fn noise(count: usize) -> Vec<u8> {
    let mut state: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Headers backwards: the library hands them over sorted, `empty` before `index`, and they were sent so.
fn digest_line(partition: i32, found: &RecordAndOffset) -> Vec<u8> {
    let Record {
        key,
        value,
        headers,
        timestamp,
    } = &found.record;
    let pairs: Vec<_> = headers
        .iter()
        .rev()
        .map(|(name, value)| format!("{name}={}", text(Some(value))))
        .collect();
    let (key, value) = (text(key.as_deref()), text(value.as_deref()));
    format!(
        "{partition} {} {} {key} {value} {}\n",
        found.offset,
        timestamp.timestamp_millis(),
        pairs.join(",")
    )
    .into_bytes()
}

fn text(bytes: Option<&[u8]>) -> String {
    bytes.map_or("null".to_owned(), |bytes| {
        String::from_utf8_lossy(bytes).into_owned()
    })
}
