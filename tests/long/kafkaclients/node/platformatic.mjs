// @platformatic/kafka: records with keys and headers in its codecs (zstd from Node 22.15 on), positions
// that survive a restart of the broker, topics created and deleted.
//
//   node platformatic.mjs SERVERS first|second
import { Admin, Consumer, MessagesStreamModes, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const [servers, phase] = process.argv.slice(2)
const base = { clientId: 'trial', bootstrapBrokers: [servers] }
const [from, to] = phase === 'first' ? [0, 300] : [300, 310]
const codecs = ['none', 'gzip', 'snappy', 'lz4'].concat(process.versions.node >= '22.15' ? ['zstd'] : [])
setTimeout(() => { console.error('too slow'); process.exit(1) }, 180000).unref()

if (phase === 'first') {
  const admin = new Admin(base)
  await admin.createTopics({ topics: [...codecs, 'deleted', 'rebalance'], partitions: 2, replicas: 1 })
  await admin.deleteTopics({ topics: ['deleted'] })
  await admin.close()
}
for (const codec of codecs) {
  const producer = new Producer({ ...base, serializers: stringSerializers, compression: codec })
  const messages = Array.from({ length: to - from }, (_, index) => ({
    topic: codec,
    key: `key ${from + index}`,
    value: `value ${from + index} `.repeat(20),
    headers: new Map([['number', `${from + index}`]])
  }))
  await producer.send({ messages })
  await producer.close()
  const consumer = new Consumer({ ...base, groupId: `g-${codec}`, deserializers: stringDeserializers, autocommit: false })
  const stream = await consumer.consume({ topics: [codec], mode: MessagesStreamModes.COMMITTED, fallbackMode: 'earliest', autocommit: true, maxWaitTime: 500 })
  const left = new Map(messages.map((each) => [each.key, each]))
  for await (const got of stream) {
    const wanted = left.get(got.key)
    if (!wanted || wanted.value !== got.value || got.headers.get('number') !== wanted.headers.get('number')) {
      console.error('not expected', got.key)
      process.exit(1)
    }
    left.delete(got.key)
    if (!left.size) break
  }
  await consumer.close(true)
}
console.log('codecs:', codecs.join(' '))
process.exit(0)
