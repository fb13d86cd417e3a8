// Plays the scenario of ../README.md with KafkaJS: `node script.mjs BOOTSTRAP PREFIX`.

import { createHash, randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'
import SnappyCodec from 'kafkajs-snappy'
import LZ4Codec from '@2l/kafkajs-lz4'
import { ZstdCodec } from 'zstd-codec'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, Partitioners, logLevel } = kafkajs

const STEP_WITHIN_MS = 30_000
const PLAY_WITHIN_MS = 120_000
const SETTLED_WITHIN_MS = 10_000
const ASK_EVERY_MS = 50
const PARTITIONS = 3
const RECORDS = 60
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const [bootstrap, prefix] = process.argv.slice(2)
const named = (name) => `${prefix}-${name}`
const RECORDS_TOPIC = named('records')
const LINE_TOPIC = named('line')
const GROWN_TOPIC = named('grown')
const RESUME_GROUP = named('resume')

const kafka = new Kafka({
  clientId: 'compat-kafkajs',
  brokers: [bootstrap],
  logLevel: logLevel.ERROR,
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 5 },
})
const admin = kafka.admin()

const zstd = await new Promise((resolve) => ZstdCodec.run((codec) => resolve(new codec.Simple())))
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = new LZ4Codec().codec
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
})

const playUntil = Date.now() + PLAY_WITHIN_MS

async function step(name, play) {
  const line = { step: name }
  const done = new AbortController()
  const withinMs = Math.max(0, Math.min(STEP_WITHIN_MS, playUntil - Date.now()))
  try {
    line.saw = await Promise.race([play(), late(withinMs, done.signal)])
  } catch (error) {
    line.failed = `${errorName(error) ?? error.name}: ${error.message}`
  } finally {
    done.abort()
  }
  process.stdout.write(`${JSON.stringify(line)}\n`)
}

async function late(withinMs, signal) {
  await sleep(withinMs, undefined, { signal }).catch(() => undefined)
  throw new Error(`not done within ${withinMs} ms`)
}

/** Resolves when `isSo` says true; the deadline is that of the step. */
async function until(isSo) {
  const giveUpAt = Date.now() + STEP_WITHIN_MS
  while (!(await isSo())) {
    if (Date.now() > giveUpAt) throw new Error(`still not so: ${isSo}`)
    await sleep(ASK_EVERY_MS)
  }
}

/** What `read` gives once it is as it should be, or at last: a broker may answer from before a change that it has acknowledged. */
async function settled(read, isSettled) {
  const giveUpAt = Date.now() + SETTLED_WITHIN_MS
  let value = await read()
  while (!isSettled(value) && Date.now() < giveUpAt) {
    await sleep(ASK_EVERY_MS)
    value = await read()
  }
  return value
}

/** The protocol's name of an error: KafkaJS has it as `type`, often of an error inside another. */
function errorName(error) {
  if (!error) return undefined
  if (error.type) return error.type
  const inner = [error.cause, ...(error.errors ?? []), ...(error.groups ?? []).map((group) => group.error)]
  return inner.map(errorName).find((name) => name !== undefined)
}

async function refusal(call) {
  try {
    await call()
  } catch (error) {
    const name = errorName(error)
    if (name === undefined) throw error
    return { error: name }
  }
  throw new Error('it was not refused')
}

const createTopic = (topic, numPartitions, configEntries = []) =>
  admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 1, configEntries }] })

function partitionCount(topic, expected) {
  const read = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  return settled(read, (count) => count === expected)
}

async function configs(type, name, configNames) {
  const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type, name, configNames }] })
  return Object.fromEntries(resources[0].configEntries.map((entry) => [entry.configName, entry.configValue]))
}

/** The `send` of a producer that is connected as long as `play` runs. */
async function withProducer(options, play) {
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, ...options })
  await producer.connect()
  try {
    return await play((record) => producer.send({ acks: -1, ...record }))
  } finally {
    await producer.disconnect()
  }
}

/** A consumer of `topic` in a group: `assigned` is what it was last given, `onMessage(partition, message)` what it read. */
class Member {
  constructor(groupId, topic, onMessage = () => undefined) {
    this.topic = topic
    this.onMessage = onMessage
    this.assigned = []
    // Heartbeats are sent between fetches, so a short wait for records is what tells it early of a rebalance.
    this.consumer = kafka.consumer({ groupId, sessionTimeout: 10_000, heartbeatInterval: 100, maxWaitTimeInMs: 100 })
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.assigned = payload.memberAssignment[topic] ?? []
    })
    this.consumer.on(this.consumer.events.REBALANCING, () => {
      this.assigned = []
    })
  }

  /** `seekTo` is `{partition, offset}` to begin at; without it, what is committed, else the beginning. */
  async start({ autoCommit = true, seekTo } = {}) {
    await this.consumer.connect()
    await this.consumer.subscribe({ topic: this.topic, fromBeginning: true })
    const running = this.consumer.run({ autoCommit, eachMessage: async ({ partition, message }) => this.onMessage(partition, message) })
    // Said before the first fetch, as the documentation has it: run() makes the group before it first waits.
    if (seekTo) this.consumer.seek({ topic: this.topic, ...seekTo })
    await running
  }

  close() {
    return this.consumer.disconnect()
  }
}

/** Messages of `topic` read by the only member of a new group, until `enough` says so of those read. */
async function read(groupId, topic, enough, options) {
  const messages = []
  const member = new Member(groupId, topic, (partition, message) => messages.push({ partition, ...message }))
  try {
    await member.start(options)
    await until(() => enough(messages))
  } finally {
    await member.close()
  }
  return messages
}

async function withMember(groupId, topic, play) {
  const member = new Member(groupId, topic)
  try {
    // Without commits: a later step asks what was committed.
    await member.start({ autoCommit: false })
    await until(() => member.assigned.length > 0)
    return await play()
  } finally {
    await member.close()
  }
}

async function describedGroup(groupId) {
  const { groups } = await admin.describeGroups([groupId])
  return groups[0]
}

async function isListed(groupId) {
  const { groups } = await admin.listGroups()
  return groups.some((group) => group.groupId === groupId)
}

const offsetsOf = async (topic, partition) => (await admin.fetchTopicOffsets(topic)).find((found) => found.partition === partition)

function digestLine({ partition, offset, timestamp, key, value, headers }) {
  const pairs = Object.entries(headers).map(([name, text]) => `${name}=${text}`)
  return `${partition} ${offset} ${timestamp} ${key} ${value} ${pairs.join(',')}\n`
}

function digest(messages) {
  const lines = messages.map((message) => Buffer.from(digestLine(message))).sort(Buffer.compare)
  return createHash('sha256').update(Buffer.concat(lines)).digest('hex')
}

await step('cluster', async () => {
  await admin.connect()
  const { brokers, controller } = await admin.describeCluster()
  return { brokers: brokers.length, controller: brokers.some((broker) => broker.nodeId === controller) }
})

await step('create_topic', async () => {
  await createTopic(RECORDS_TOPIC, PARTITIONS, [
    { name: 'retention.ms', value: '86400000' },
    { name: 'max.message.bytes', value: '200000' },
  ])
  return { partitions: await partitionCount(RECORDS_TOPIC, PARTITIONS) }
})

await step('create_existing_topic', async () => {
  // KafkaJS answers false where the broker answers TOPIC_ALREADY_EXISTS, and raises for all else.
  if (await createTopic(RECORDS_TOPIC, PARTITIONS)) throw new Error('it was not refused')
  return { error: 'TOPIC_ALREADY_EXISTS' }
})

await step('create_invalid_topic', () => refusal(() => createTopic(`${prefix} bad!`, 1)))

await step('create_invalid_config', () =>
  refusal(() => createTopic(named('odd'), 1, [{ name: 'cleanup.policy', value: 'sometimes' }])),
)

await step('create_partitions', async () => {
  await createTopic(GROWN_TOPIC, 1)
  await admin.createPartitions({ topicPartitions: [{ topic: GROWN_TOPIC, count: 4 }] })
  return { partitions: await partitionCount(GROWN_TOPIC, 4) }
})

await step('create_fewer_partitions', () =>
  refusal(() => admin.createPartitions({ topicPartitions: [{ topic: GROWN_TOPIC, count: 2 }] })),
)

await step('describe_configs', () => configs(ConfigResourceTypes.TOPIC, RECORDS_TOPIC, ['retention.ms', 'max.message.bytes']))

await step('alter_configs', async () => {
  // AlterConfigs: the library has no call for IncrementalAlterConfigs.
  await admin.alterConfigs({
    validateOnly: false,
    resources: [
      { type: ConfigResourceTypes.TOPIC, name: GROWN_TOPIC, configEntries: [{ name: 'retention.ms', value: '3600000' }] },
    ],
  })
  return settled(
    () => configs(ConfigResourceTypes.TOPIC, GROWN_TOPIC, ['retention.ms']),
    (found) => found['retention.ms'] === '3600000',
  )
})

await step('describe_broker_configs', async () => {
  const { brokers } = await admin.describeCluster()
  const entries = await configs(ConfigResourceTypes.BROKER, String(brokers[0].nodeId))
  return { described: Object.keys(entries).length > 0 }
})

await step('produce', () =>
  withProducer({}, async (send) => {
    const ends = {}
    for (let start = 0; start < RECORDS; start += 10) {
      const messages = Array.from({ length: 10 }, (_, n) => start + n).map((i) => ({
        partition: i % PARTITIONS,
        key: `key-${i}`,
        value: i % 10 === 9 ? null : `value-${i}`,
        headers: { index: String(i), empty: '' },
        timestamp: String(1_600_000_000_000 + 1000 * i),
      }))
      for (const { partition, baseOffset } of await send({ topic: RECORDS_TOPIC, messages })) {
        const count = messages.filter((message) => message.partition === partition).length
        ends[partition] = Number(baseOffset) + count
      }
    }
    return ends
  }),
)

await step('codecs', async () => {
  const topic = named('codecs')
  const names = Object.keys(CODECS)
  await createTopic(topic, 1)
  const sent = new Map(names.flatMap((name) => Array.from({ length: 10 }, (_, j) => [`${name}-${j}-${'x'.repeat(100)}`, name])))
  await withProducer({}, async (send) => {
    for (const name of names) {
      const values = [...sent].filter(([, codec]) => codec === name).map(([value]) => ({ value }))
      await send({ topic, compression: CODECS[name], messages: values })
    }
  })
  const messages = await read(named('codecs'), topic, (found) => found.length >= sent.size)
  const counts = Object.fromEntries(names.map((name) => [name, 0]))
  for (const value of new Set(messages.map((message) => String(message.value)))) {
    if (sent.has(value)) counts[sent.get(value)] += 1
  }
  return counts
})

await step('consume', async () => {
  const messages = await read(named('consume'), RECORDS_TOPIC, (found) => found.length >= RECORDS)
  return { records: messages.length, digest: digest(messages) }
})

await step('seek', async () => {
  const ofPartition = (found) => found.filter((message) => message.partition === 1)
  const messages = await read(named('seek'), RECORDS_TOPIC, (found) => ofPartition(found).length > 0, {
    seekTo: { partition: 1, offset: '7' },
  })
  const [first] = ofPartition(messages)
  return { offset: Number(first.offset), key: String(first.key) }
})

await step('offsets', async () => {
  const { low, high } = await offsetsOf(RECORDS_TOPIC, 0)
  return { earliest: Number(low), latest: Number(high) }
})

await step('offsets_by_time', async () => {
  const { high } = await offsetsOf(RECORDS_TOPIC, 0)
  const offsetFor = async (timestamp) => {
    const found = await admin.fetchTopicOffsetsByTimestamp(RECORDS_TOPIC, timestamp)
    const { offset } = found.find(({ partition }) => partition === 0)
    // The latest offset is KafkaJS' word for "none".
    return offset === high ? null : Number(offset)
  }
  return { found: await offsetFor(1_600_000_006_001), none: await offsetFor(1_700_000_000_000) }
})

await step('group_of_two', async () => {
  const seen = new Set()
  const see = (partition, message) => seen.add(`${partition} ${message.offset}`)
  const a = new Member(named('pair'), RECORDS_TOPIC, see)
  const b = new Member(named('pair'), RECORDS_TOPIC, see)
  try {
    await a.start()
    await until(() => a.assigned.length === PARTITIONS)
    const alone = a.assigned.length
    await b.start()
    await until(() => b.assigned.length > 0 && a.assigned.length + b.assigned.length === PARTITIONS)
    const together = [a.assigned.length, b.assigned.length].sort()
    await b.close()
    await until(() => a.assigned.length === PARTITIONS && seen.size >= RECORDS)
    return { alone, together, again: a.assigned.length, records: seen.size }
  } finally {
    await Promise.all([a.close(), b.close()])
  }
})

await step('commit_and_resume', async () => {
  await createTopic(LINE_TOPIC, 1)
  const messages = Array.from({ length: 20 }, (_, i) => ({ value: `line-${i}` }))
  await withProducer({}, (send) => send({ topic: LINE_TOPIC, messages }))

  let count = 0
  let committed
  const first = new Member(RESUME_GROUP, LINE_TOPIC, () => (count += 1))
  first.consumer.on(first.consumer.events.COMMIT_OFFSETS, ({ payload }) => {
    committed = Number(payload.topics[0].partitions[0].offset)
  })
  try {
    await first.start({ autoCommit: false })
    await until(() => count >= 10)
    await first.consumer.commitOffsets([{ topic: LINE_TOPIC, partition: 0, offset: '10' }])
  } finally {
    await first.close()
  }
  const rest = await read(RESUME_GROUP, LINE_TOPIC, (found) => found.length > 0, { autoCommit: false })
  return { committed, resumed: String(rest[0].value) }
})

await step('list_groups', async () => ({ listed: await isListed(RESUME_GROUP) }))

await step('describe_group', async () => {
  const described = await withMember(RESUME_GROUP, LINE_TOPIC, () => describedGroup(RESUME_GROUP))
  const { state: empty } = await describedGroup(RESUME_GROUP)
  return { member: described.state, empty, protocol_type: described.protocolType }
})

await step('list_group_offsets', async () => {
  const [{ partitions }] = await admin.fetchOffsets({ groupId: RESUME_GROUP, topics: [LINE_TOPIC] })
  return { offset: Number(partitions.find(({ partition }) => partition === 0).offset) }
})

await step('delete_busy_group', () =>
  withMember(RESUME_GROUP, LINE_TOPIC, () => refusal(() => admin.deleteGroups([RESUME_GROUP]))),
)

await step('delete_group', async () => {
  await admin.deleteGroups([RESUME_GROUP])
  return { listed: await isListed(RESUME_GROUP) }
})

await step('delete_missing_group', () => refusal(() => admin.deleteGroups([named('nobody')])))

await step('delete_records', async () => {
  await admin.deleteTopicRecords({ topic: LINE_TOPIC, partitions: [{ partition: 0, offset: '5' }] })
  const { low } = await offsetsOf(LINE_TOPIC, 0)
  return { low_watermark: Number(low), earliest: Number(low) }
})

await step('idempotent', async () => {
  const topic = named('once')
  await createTopic(topic, 1)
  await withProducer({ idempotent: true, maxInFlightRequests: 1 }, async (send) => {
    for (let start = 0; start < 100; start += 10) {
      await send({ topic, messages: Array.from({ length: 10 }, (_, n) => ({ value: `once-${start + n}` })) })
    }
  })
  return { latest: Number((await offsetsOf(topic, 0)).high) }
})

await step('message_too_large', () =>
  withProducer({ retry: { retries: 0 } }, (send) =>
    refusal(() => send({ topic: RECORDS_TOPIC, messages: [{ partition: 0, value: randomBytes(300_000) }] })),
  ),
)

await step('missing_topic', () =>
  withProducer({ retry: { initialRetryTime: 50, retries: 1 } }, (send) =>
    refusal(() => send({ topic: named('nowhere'), messages: [{ value: 'lost' }] })),
  ),
)

await step('delete_topic', async () => {
  await admin.deleteTopics({ topics: [GROWN_TOPIC] })
  await until(async () => !(await admin.listTopics()).includes(GROWN_TOPIC))
  return { listed: (await admin.listTopics()).includes(GROWN_TOPIC) }
})

await step('delete_missing_topic', () => refusal(() => admin.deleteTopics({ topics: [named('nowhere')] })))

// Closes the admin client's connections, and what a step past its deadline left behind.
process.exit(0)
