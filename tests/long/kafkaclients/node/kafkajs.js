// kafkajs: records with keys and headers in its codecs (zstd needs a compiled package), a group that
// rebalances, positions that survive a restart of the broker, topics created and deleted, and
// transactions where asked.
//
//   node kafkajs.js SERVERS first|second|transactions
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
let hasLz4 = true
try {
  const LZ4 = require('kafkajs-lz4')
  CompressionCodecs[CompressionTypes.LZ4] = new LZ4().codec
} catch (error) { hasLz4 = false; console.log('lz4 left out:', error.message.split('\n')[0]) }
const COUNT = 300
const [servers, phase] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [servers], logLevel: logLevel.ERROR })
const codecs = ['None', 'GZIP', 'Snappy', 'LZ4'].slice(0, hasLz4 ? 4 : 3)
setTimeout(() => { console.error('too slow'); process.exit(1) }, 180000).unref()

function fail (...what) { console.error(...what); process.exit(1) }
const message = (number) => ({ key: `key ${number}`, value: `value ${number} `.repeat(20), headers: { number: `${number}` } })
const range = (from, to) => Array.from({ length: to - from }, (_, index) => message(from + index))

async function consume (group, topic, from, to, readUncommitted) {
  const consumer = kafka.consumer({ groupId: group, readUncommitted })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const left = new Map(range(from, to).map((each) => [each.key, each]))
  await new Promise((resolve) => consumer.run({
    eachMessage: async ({ message: got }) => {
      const wanted = left.get(`${got.key}`)
      if (!wanted || wanted.value !== `${got.value}` || wanted.headers.number !== `${got.headers.number}`) fail('not expected', got)
      left.delete(wanted.key)
      if (!left.size) resolve()
    }
  }))
  await consumer.disconnect()
}

async function join () {
  const member = kafka.consumer({ groupId: 'rebalance', heartbeatInterval: 200, maxWaitTimeInMs: 200 })
  const sizes = []
  let wake = () => {}
  member.on(member.events.GROUP_JOIN, ({ payload }) => { sizes.push((payload.memberAssignment.rebalance || []).length); wake() })
  await member.connect()
  await member.subscribe({ topic: 'rebalance' })
  await member.run({ eachMessage: async () => {} })
  return { member, until: async (size) => { while (sizes[sizes.length - 1] !== size) await new Promise((resolve) => { wake = resolve }) } }
}

async function main () {
  if (phase === 'transactions') {
    const producer = kafka.producer({ transactionalId: 'kafkajs', idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    for (const [from, end] of [[0, 'abort'], [100, 'commit']]) {
      const transaction = await producer.transaction()
      await transaction.send({ topic: 'transactions', messages: range(from, from + 100) })
      await transaction[end]()
    }
    await producer.disconnect()
    await consume('transactions', 'transactions', 100, 200, false)
    return
  }
  let [from, to] = [0, COUNT]
  if (phase === 'second') [from, to] = [COUNT, COUNT + 10]
  else {
    const admin = kafka.admin()
    await admin.connect()
    const names = ['None', 'GZIP', 'Snappy', 'LZ4', 'rebalance', 'deleted']
    await admin.createTopics({ topics: names.map((topic) => ({ topic, numPartitions: 2 })) })
    await admin.deleteTopics({ topics: ['deleted'] })
    const found = await admin.listTopics()
    if (found.includes('deleted') || found.filter((each) => names.includes(each)).length !== 5) fail(found)
    await admin.disconnect()
    const first = await join()
    await first.until(2)
    const second = await join()
    await second.until(1)
    await first.until(1)
    await second.member.disconnect()
    await first.until(2)
    await first.member.disconnect()
  }
  for (const name of codecs) {
    const producer = kafka.producer()
    await producer.connect()
    await producer.send({ topic: name, messages: range(from, to), compression: CompressionTypes[name] })
    await producer.disconnect()
    await consume(`g-${name}`, name, from, to)
  }
  console.log('codecs:', codecs.join(' '))
}
main().then(() => process.exit(0), (error) => fail(error))
