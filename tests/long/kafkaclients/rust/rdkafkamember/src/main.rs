// rdkafka (Rust) for tests.long.kafkaclients.cluster: a producer of numbered messages, idempotent
// if its name ends with "once", and a member of a group, at the client's default settings. They
// print what the programs of tests.integration.kafkachaosmember write down, until SIGTERM.
//
//   rdkafkamember SERVERS producer NAME | consumer GROUP
use futures_util::future::join_all;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, ClientContext, Message};
use std::time::Duration;
use tokio::signal::unix::{signal, SignalKind};

const PAUSE: Duration = Duration::from_millis(250);

async fn produce(settings: &mut ClientConfig, name: String) {
    if name.ends_with("once") {
        settings.set("enable.idempotence", "true");
    }
    let producer: FutureProducer = settings.create().unwrap();
    let mut term = signal(SignalKind::terminate()).unwrap();
    let mut sends = vec![];
    for number in 0.. {
        let (producer, name) = (producer.clone(), name.clone());
        println!("sent {number}");
        sends.push(tokio::spawn(async move {
            let key = format!("{name}{}", number % 20 + 1);
            let value = format!("{name}.{number}.{key}.");
            let record = FutureRecord::to("clicks").key(&key).payload(&value);
            match producer.send(record, Duration::from_secs(60)).await {
                Ok(found) => println!("ok {number} clicks/{} {}", found.partition, found.offset),
                Err((error, _)) => println!("unknown {number} {error}"),
            }
        }));
        tokio::select! {
            _ = tokio::time::sleep(PAUSE) => {},
            _ = term.recv() => break,
        }
    }
    join_all(sends).await;
}

struct Told;
impl ClientContext for Told {}

fn tell(word: &str, what: &Rebalance) {
    if let Rebalance::Assign(list) | Rebalance::Revoke(list) = what {
        let places: Vec<_> =
            list.elements().iter().map(|each| format!("clicks/{}", each.partition())).collect();
        if !places.is_empty() {
            println!("{word} {}", places.join(","));
        }
    }
}

impl ConsumerContext for Told {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, what: &Rebalance) {
        tell(if matches!(what, Rebalance::Assign(_)) { "assigned" } else { "revoked" }, what);
    }
}

async fn consume(settings: &mut ClientConfig, group: String) {
    settings.set("group.id", group).set("auto.offset.reset", "earliest");
    let consumer: StreamConsumer<Told> = settings.create_with_context(Told).unwrap();
    consumer.subscribe(&["clicks"]).unwrap();
    let mut term = signal(SignalKind::terminate()).unwrap();
    loop {
        tokio::select! {
            found = consumer.recv() => match found {
                Ok(found) => println!("got clicks/{} {} {}", found.partition(), found.offset(),
                    found.payload_view::<str>().unwrap().unwrap()),
                Err(error) => println!("error {error}"),
            },
            _ = term.recv() => break,
        }
    }
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = std::env::args().collect();
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", &given[1]);
    match given[2].as_str() {
        "producer" => produce(&mut settings, given[3].clone()).await,
        _ => consume(&mut settings, given[3].clone()).await,
    }
}
