// kafkajs for tests.long.kafkaclients.cluster: a producer of numbered messages (acks of all is its
// default; idempotent if its name ends with "once") and a member of a group. They print what the
// programs of tests.integration.kafkachaosmember write down, until SIGTERM.
//
//   node main.js SERVERS producer NAME | consumer GROUP
const { CompressionCodecs, CompressionTypes, Kafka, Partitioners, logLevel } = require('kafkajs')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy') // franz-go compresses so
const PAUSE_MS = 250
const [servers, program, name] = process.argv.slice(2)
const kafka = new Kafka({ brokers: servers.split(','), logLevel: logLevel.ERROR })
const say = (...words) => process.stdout.write(`${words.join(' ')}\n`)
const oneLine = (error) => `${error.name} ${error.message}`.replaceAll('\n', ' ')
const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
let isOver = false
const over = new Promise((resolve) => process.on('SIGTERM', () => { isOver = true; resolve() }))

async function produce () {
  const idempotent = name.endsWith('once')
  const createPartitioner = Partitioners.DefaultPartitioner
  const producer = kafka.producer({ idempotent, createPartitioner })
  await producer.connect()
  for (let number = 0; !isOver; number++) {
    const key = `${name}${number % 20 + 1}`
    say('sent', number)
    try {
      const messages = [{ key, value: `${name}.${number}.${key}.` }]
      const [found] = await producer.send({ topic: 'clicks', messages })
      say('ok', number, `clicks/${found.partition}`, found.baseOffset)
    } catch (error) {
      say('unknown', number, oneLine(error))
    }
    await pause()
  }
  await producer.disconnect()
}

async function consume () {
  const consumer = kafka.consumer({ groupId: name })
  let places = []
  const revoked = () => {
    if (places.length) say('revoked', places.join(','))
    places = []
  }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    revoked()
    places = (payload.memberAssignment.clicks ?? []).map((each) => `clicks/${each}`)
    if (places.length) say('assigned', places.join(','))
  })
  consumer.on(consumer.events.REBALANCING, revoked)
  consumer.on(consumer.events.CRASH, ({ payload }) => say('error', oneLine(payload.error)))
  await consumer.connect()
  await consumer.subscribe({ topic: 'clicks', fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message }) =>
      say('got', `clicks/${partition}`, message.offset, message.value)
  })
  await over
  await consumer.disconnect()
}

const programs = { producer: produce, consumer: consume }
programs[program]().then(
  () => process.exit(0),
  (error) => { console.error(error); process.exit(1) }
)
