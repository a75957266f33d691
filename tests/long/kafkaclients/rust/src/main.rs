//! rskafka: records with keys and headers in every codec, offsets, topics created and deleted. It
//! has no groups: in the second run it reads from the offset where the first ended.
//!
//!     clients SERVERS first|second

use chrono::Utc;
use rskafka::client::partition::{Compression, OffsetAt, UnknownTopicHandling};
use rskafka::client::ClientBuilder;
use rskafka::record::Record;
use std::collections::BTreeMap;

const COUNT: usize = 300;

fn record(number: usize) -> Record {
    Record {
        key: Some(format!("key {number}").into_bytes()),
        value: Some(format!("value {number} ").repeat(20).into_bytes()),
        headers: BTreeMap::from([("number".to_owned(), number.to_string().into_bytes())]),
        timestamp: Utc::now(),
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let client = ClientBuilder::new(vec![arguments[1].clone()]).build().await.unwrap();
    let (from, to) = if arguments[2] == "first" { (0, COUNT) } else { (COUNT, COUNT + 10) };
    let codecs = [
        ("none", Compression::NoCompression),
        ("gzip", Compression::Gzip),
        ("snappy", Compression::Snappy),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
    ];
    if from == 0 {
        let controller = client.controller_client().unwrap();
        for name in ["none", "gzip", "snappy", "lz4", "zstd", "deleted"] {
            controller.create_topic(name, 2, 1, 5_000).await.unwrap();
        }
        controller.delete_topic("deleted", 5_000).await.unwrap();
        let topics = client.list_topics().await.unwrap();
        assert!(topics.iter().all(|each| each.name != "deleted" && each.partitions.len() == 2));
        assert_eq!(topics.len(), 5);
    }
    for (name, codec) in codecs {
        let partition =
            client.partition_client(name, 1, UnknownTopicHandling::Error).await.unwrap();
        let start = partition.get_offset(OffsetAt::Latest).await.unwrap();
        assert_eq!(start, from as i64);
        let sent: Vec<Record> = (from..to).map(record).collect();
        let offsets = partition.produce(sent.clone(), codec).await.unwrap();
        assert_eq!(offsets, (from as i64..to as i64).collect::<Vec<i64>>());
        let mut next = start;
        while next < to as i64 {
            let (found, mark) =
                partition.fetch_records(next, 1..1_000_000, 1_000).await.unwrap();
            assert_eq!(mark, to as i64);
            let asked = next;
            for each in found.into_iter().filter(|each| each.offset >= asked) {
                let wanted = &sent[each.offset as usize - from];
                assert_eq!(each.record.key, wanted.key);
                assert_eq!(each.record.value, wanted.value);
                assert_eq!(each.record.headers, wanted.headers);
                next = each.offset + 1;
            }
        }
    }
}
