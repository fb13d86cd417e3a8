// Plays the scenario of ../README.md with @platformatic/kafka: `node script.mjs BOOTSTRAP PREFIX`.

import { createHash, randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  Admin,
  ConfigResourceTypes,
  Consumer,
  IncrementalAlterConfigOperationTypes,
  ListOffsetTimestamps,
  MessagesStreamFallbackModes,
  MessagesStreamModes,
  ProduceAcks,
  Producer,
  stringDeserializers,
  stringSerializers,
} from '@platformatic/kafka'

const STEP_WITHIN_MS = 30_000
const PLAY_WITHIN_MS = 120_000
const SETTLED_WITHIN_MS = 10_000
const ASK_EVERY_MS = 50
const PARTITIONS = 3
const RECORDS = 60
const CODECS = ['none', 'gzip', 'snappy', 'lz4', 'zstd']

const [bootstrap, prefix] = process.argv.slice(2)
const named = (name) => `${prefix}-${name}`
const RECORDS_TOPIC = named('records')
const LINE_TOPIC = named('line')
const GROWN_TOPIC = named('grown')
const RESUME_GROUP = named('resume')

const cluster = { clientId: 'compat-platformatic', bootstrapBrokers: [bootstrap], timeout: 10_000, retryDelay: 50 }
const admin = new Admin({ ...cluster, retries: 1 })

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

/** The protocol's name of an error: the library has it as `apiId`, of an error inside another. */
function errorName(error) {
  if (!error) return undefined
  // What it makes of UNKNOWN_TOPIC_OR_PARTITION, and of nothing else, in an answer to Metadata.
  if (/^Unknown topic \S+\.$/.test(error.message)) return 'UNKNOWN_TOPIC_OR_PARTITION'
  return error.apiId ?? [error.cause, ...(error.errors ?? [])].map(errorName).find((name) => name !== undefined)
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

async function createTopic(topic, partitions, configs = {}) {
  await admin.createTopics({
    topics: [topic],
    partitions,
    replicas: 1,
    configs: Object.entries(configs).map(([name, value]) => ({ name, value })),
  })
  await partitionCount(topic, partitions)
}

function partitionCount(topic, expected) {
  const read = async () => {
    try {
      return (await admin.metadata({ topics: [topic], forceUpdate: true })).topics.get(topic).partitionsCount
    } catch (error) {
      if (errorName(error) === 'UNKNOWN_TOPIC_OR_PARTITION') return 0
      throw error
    }
  }
  return settled(read, (count) => count === expected)
}

async function configs(resourceType, resourceName, configurationKeys = null) {
  const [{ configs: entries }] = await admin.describeConfigs({ resources: [{ resourceType, resourceName, configurationKeys }] })
  return Object.fromEntries(entries.map((entry) => [entry.name, entry.value]))
}

/** The offset that ListOffsets gives for a timestamp, as a number; -1 is the library's word for none. */
async function offsetFor(topic, partitionIndex, timestamp) {
  const [{ partitions }] = await admin.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex, timestamp }] }] })
  return Number(partitions[0].offset)
}

/** The `send` of a producer that is open as long as `play` runs. */
async function withProducer(options, play) {
  const producer = new Producer({ ...cluster, retries: 0, serializers: stringSerializers, acks: ProduceAcks.ALL, ...options })
  try {
    return await play((record) => producer.send({ acks: ProduceAcks.ALL, ...record }))
  } finally {
    await producer.close()
  }
}

/** A consumer of `topic` in a group: `assigned` is what it was last given, `onMessage(message)` what it read. */
class Member {
  constructor(groupId, topic, onMessage = () => undefined) {
    this.topic = topic
    this.onMessage = onMessage
    this.assigned = []
    this.consumer = new Consumer({
      ...cluster,
      groupId,
      retries: 20,
      sessionTimeout: 10_000,
      rebalanceTimeout: 10_000,
      heartbeatInterval: 100,
      maxWaitTime: 100,
      deserializers: stringDeserializers,
    })
    this.consumer.on('consumer:group:join', () => {
      this.assigned = this.consumer.assignments.find((assignment) => assignment.topic === topic)?.partitions ?? []
    })
    this.consumer.on('consumer:group:rebalance', () => {
      this.assigned = []
    })
  }

  /** `options` are those of a stream; without any, it begins at what is committed, else at the beginning. */
  async start(options = { mode: MessagesStreamModes.COMMITTED, fallbackMode: MessagesStreamFallbackModes.EARLIEST }) {
    this.stream = await this.consumer.consume({ topics: [this.topic], autocommit: true, ...options })
    this.stream.on('error', (error) => (this.failure = error))
    this.stream.on('data', (message) => this.onMessage(message))
  }

  /** Resolves when `isSo` says true; throws what ended the stream. */
  async until(isSo) {
    await until(() => this.failure !== undefined || isSo())
    if (this.failure !== undefined) throw this.failure
  }

  async close() {
    await this.stream?.close()
    await this.consumer.close(true)
  }
}

/** Messages of `topic` read by the only member of a group, until `enough` says so of those read. */
async function read(groupId, topic, enough, options) {
  const messages = []
  const member = new Member(groupId, topic, (message) => messages.push(message))
  try {
    await member.start(options)
    await member.until(() => enough(messages))
  } finally {
    await member.close()
  }
  return messages
}

async function withMember(groupId, topic, play) {
  const member = new Member(groupId, topic)
  try {
    // Without commits: a later step asks what was committed.
    await member.start({ autocommit: false })
    await member.until(() => member.assigned.length > 0)
    return await play()
  } finally {
    await member.close()
  }
}

const fromBeginning = { mode: MessagesStreamModes.EARLIEST, autocommit: false }
const fromOffsets = (topic, offsets) => ({
  mode: MessagesStreamModes.MANUAL,
  fallbackMode: MessagesStreamFallbackModes.FAIL,
  autocommit: false,
  offsets: offsets.map((offset, partition) => ({ topic, partition, offset })),
})

const describedGroup = async (groupId) => (await admin.describeGroups({ groups: [groupId] })).get(groupId)

const isListed = async (groupId) => (await admin.listGroups()).has(groupId)

function digestLine({ partition, offset, timestamp, key, value, headerEntries }) {
  const pairs = headerEntries.map(([name, text]) => `${name}=${text}`)
  return `${partition} ${offset} ${timestamp} ${key} ${value ?? null} ${pairs.join(',')}\n`
}

function digest(messages) {
  const lines = messages.map((message) => Buffer.from(digestLine(message))).sort(Buffer.compare)
  return createHash('sha256').update(Buffer.concat(lines)).digest('hex')
}

await step('cluster', async () => {
  const { brokers, controllerId } = await admin.metadata({ topics: [] })
  return { brokers: brokers.size, controller: brokers.has(controllerId) }
})

await step('create_topic', async () => {
  await createTopic(RECORDS_TOPIC, PARTITIONS, { 'retention.ms': '86400000', 'max.message.bytes': '200000' })
  return { partitions: await partitionCount(RECORDS_TOPIC, PARTITIONS) }
})

await step('create_existing_topic', () => refusal(() => createTopic(RECORDS_TOPIC, PARTITIONS)))

await step('create_invalid_topic', () => refusal(() => createTopic(`${prefix} bad!`, 1)))

await step('create_invalid_config', () => refusal(() => createTopic(named('odd'), 1, { 'cleanup.policy': 'sometimes' })))

await step('create_partitions', async () => {
  await createTopic(GROWN_TOPIC, 1)
  await admin.createPartitions({ topics: [{ name: GROWN_TOPIC, count: 4 }] })
  return { partitions: await partitionCount(GROWN_TOPIC, 4) }
})

await step('create_fewer_partitions', () => refusal(() => admin.createPartitions({ topics: [{ name: GROWN_TOPIC, count: 2 }] })))

await step('describe_configs', () => configs(ConfigResourceTypes.TOPIC, RECORDS_TOPIC, ['retention.ms', 'max.message.bytes']))

await step('alter_configs', async () => {
  const change = { name: 'retention.ms', value: '3600000', configOperation: IncrementalAlterConfigOperationTypes.SET }
  await admin.incrementalAlterConfigs({
    resources: [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: GROWN_TOPIC, configs: [change] }],
  })
  return settled(
    () => configs(ConfigResourceTypes.TOPIC, GROWN_TOPIC, ['retention.ms']),
    (found) => found['retention.ms'] === '3600000',
  )
})

await step('describe_broker_configs', async () => {
  const { controllerId } = await admin.metadata({ topics: [] })
  const entries = await configs(ConfigResourceTypes.BROKER, String(controllerId))
  return { described: Object.keys(entries).length > 0 }
})

await step('produce', () =>
  withProducer({}, async (send) => {
    const ends = {}
    for (let start = 0; start < RECORDS; start += 10) {
      const messages = Array.from({ length: 10 }, (_, n) => start + n).map((i) => ({
        topic: RECORDS_TOPIC,
        partition: i % PARTITIONS,
        key: `key-${i}`,
        value: i % 10 === 9 ? null : `value-${i}`,
        headers: { index: String(i), empty: '' },
        timestamp: BigInt(1_600_000_000_000 + 1000 * i),
      }))
      for (const { partition, offset } of (await send({ messages })).offsets) {
        const count = messages.filter((message) => message.partition === partition).length
        ends[partition] = Number(offset) + count
      }
    }
    return ends
  }),
)

await step('codecs', async () => {
  const topic = named('codecs')
  await createTopic(topic, 1)
  const sent = new Map(CODECS.flatMap((name) => Array.from({ length: 10 }, (_, j) => [`${name}-${j}-${'x'.repeat(100)}`, name])))
  await withProducer({}, async (send) => {
    for (const name of CODECS) {
      const values = [...sent].filter(([, codec]) => codec === name).map(([value]) => ({ topic, value }))
      await send({ compression: name, messages: values })
    }
  })
  const messages = await read(named('codecs'), topic, (found) => found.length >= sent.size, fromBeginning)
  const counts = Object.fromEntries(CODECS.map((name) => [name, 0]))
  for (const value of new Set(messages.map((message) => message.value))) {
    if (sent.has(value)) counts[sent.get(value)] += 1
  }
  return counts
})

await step('consume', async () => {
  const messages = await read(named('consume'), RECORDS_TOPIC, (found) => found.length >= RECORDS, fromBeginning)
  return { records: messages.length, digest: digest(messages) }
})

await step('seek', async () => {
  // Of the two other partitions nothing is left to read at 20.
  const messages = await read(named('seek'), RECORDS_TOPIC, (found) => found.length > 0, fromOffsets(RECORDS_TOPIC, [20n, 7n, 20n]))
  return { offset: Number(messages[0].offset), key: messages[0].key }
})

await step('offsets', async () => ({
  earliest: await offsetFor(RECORDS_TOPIC, 0, ListOffsetTimestamps.EARLIEST),
  latest: await offsetFor(RECORDS_TOPIC, 0, ListOffsetTimestamps.LATEST),
}))

await step('offsets_by_time', async () => {
  const none = await offsetFor(RECORDS_TOPIC, 0, 1_700_000_000_000n)
  return { found: await offsetFor(RECORDS_TOPIC, 0, 1_600_000_006_001n), none: none === -1 ? null : none }
})

await step('group_of_two', async () => {
  const seen = new Set()
  const see = ({ partition, offset }) => seen.add(`${partition} ${offset}`)
  const a = new Member(named('pair'), RECORDS_TOPIC, see)
  const b = new Member(named('pair'), RECORDS_TOPIC, see)
  try {
    await a.start()
    await a.until(() => a.assigned.length === PARTITIONS)
    const alone = a.assigned.length
    await b.start()
    await b.until(() => b.assigned.length > 0 && a.assigned.length + b.assigned.length === PARTITIONS)
    const together = [a.assigned.length, b.assigned.length].sort()
    await b.close()
    await a.until(() => a.assigned.length === PARTITIONS && seen.size >= RECORDS)
    return { alone, together, again: a.assigned.length, records: seen.size }
  } finally {
    await Promise.all([a.close(), b.close()])
  }
})

await step('commit_and_resume', async () => {
  await createTopic(LINE_TOPIC, 1)
  const messages = Array.from({ length: 20 }, (_, i) => ({ topic: LINE_TOPIC, value: `line-${i}` }))
  await withProducer({}, (send) => send({ messages }))

  let count = 0
  let committed
  const committing = { mode: MessagesStreamModes.COMMITTED, fallbackMode: MessagesStreamFallbackModes.EARLIEST, autocommit: false }
  const first = new Member(RESUME_GROUP, LINE_TOPIC, () => (count += 1))
  try {
    await first.start(committing)
    await first.until(() => count >= 10)
    await first.consumer.commit({ offsets: [{ topic: LINE_TOPIC, partition: 0, offset: 10n, leaderEpoch: 0 }] })
    const found = await first.consumer.listCommittedOffsets({ topics: [{ topic: LINE_TOPIC, partitions: [0] }] })
    committed = Number(found.get(LINE_TOPIC)[0])
  } finally {
    await first.close()
  }
  const rest = await read(RESUME_GROUP, LINE_TOPIC, (found) => found.length > 0, committing)
  return { committed, resumed: rest[0].value }
})

await step('list_groups', async () => ({ listed: await isListed(RESUME_GROUP) }))

await step('describe_group', async () => {
  const described = await withMember(RESUME_GROUP, LINE_TOPIC, () => describedGroup(RESUME_GROUP))
  const { state: empty } = await describedGroup(RESUME_GROUP)
  return { member: described.state, empty, protocol_type: described.protocolType }
})

await step('list_group_offsets', async () => {
  const [{ topics }] = await admin.listConsumerGroupOffsets({ groups: [RESUME_GROUP] })
  const { partitions } = topics.find((topic) => topic.name === LINE_TOPIC)
  return { offset: Number(partitions.find(({ partitionIndex }) => partitionIndex === 0).committedOffset) }
})

await step('delete_busy_group', () =>
  withMember(RESUME_GROUP, LINE_TOPIC, () => refusal(() => admin.deleteGroups({ groups: [RESUME_GROUP] }))),
)

await step('delete_group', async () => {
  await admin.deleteGroups({ groups: [RESUME_GROUP] })
  return { listed: await isListed(RESUME_GROUP) }
})

await step('delete_missing_group', () => refusal(() => admin.deleteGroups({ groups: [named('nobody')] })))

await step('delete_records', async () => {
  const [{ partitions }] = await admin.deleteRecords({ topics: [{ name: LINE_TOPIC, partitions: [{ partition: 0, offset: 5n }] }] })
  return { low_watermark: Number(partitions[0].lowWatermark), earliest: await offsetFor(LINE_TOPIC, 0, ListOffsetTimestamps.EARLIEST) }
})

await step('fetch_out_of_range', () =>
  refusal(() => read(named('beyond'), LINE_TOPIC, (found) => found.length > 0, fromOffsets(LINE_TOPIC, [1000n]))),
)

await step('idempotent', async () => {
  const topic = named('once')
  await createTopic(topic, 1)
  await withProducer({ idempotent: true }, async (send) => {
    for (let start = 0; start < 100; start += 10) {
      await send({ messages: Array.from({ length: 10 }, (_, n) => ({ topic, value: `once-${start + n}` })) })
    }
  })
  return { latest: await offsetFor(topic, 0, ListOffsetTimestamps.LATEST) }
})

await step('message_too_large', () =>
  withProducer({ serializers: undefined }, (send) =>
    refusal(() => send({ messages: [{ topic: RECORDS_TOPIC, partition: 0, value: randomBytes(300_000) }] })),
  ),
)

await step('missing_topic', () =>
  withProducer({}, (send) => refusal(() => send({ messages: [{ topic: named('nowhere'), value: 'lost' }] }))),
)

await step('delete_topic', async () => {
  await admin.deleteTopics({ topics: [GROWN_TOPIC] })
  await until(async () => !(await admin.listTopics()).includes(GROWN_TOPIC))
  return { listed: (await admin.listTopics()).includes(GROWN_TOPIC) }
})

await step('delete_missing_topic', () => refusal(() => admin.deleteTopics({ topics: [named('nowhere')] })))

// Closes the admin client's connections, and what a step past its deadline left behind.
process.exit(0)
