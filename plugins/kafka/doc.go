// Package kafka moves messages by Apache Kafka: windowed group sources, broadcast sources, and durable sinks.
//
// The publisher and the group subscriber are our own, on sarama. watermill-kafka supplies the wire format (its
// DefaultMarshaler and the name of its uuid header) and the subscriber without a group behind Broadcast.
// watermill-kafka's group subscriber has one unacknowledged message of a partition in hand, spins on a record that it can't
// decode, and drops the acks of a clean shutdown. Its publisher waits for the broker after each message.
//
// # How a record lives
//
// Every partition that a member is given has a claim, and the claim a window: the records between
// the first unacknowledged and the last one read, at most Flow.Window of them. A record that was read
// gets a carrier (a goroutine) that waits until it is due, hands it out, waits for the answer, and hands it out
// again after a nack and a pause. Only the contiguous acknowledged prefix of the window is marked for commit.
//
// When the session ends (a rebalance, Drain, Close) the claim reads and emits nothing more, waits for
// what handlers have in their hands, marks, and only then lets the partition go: sarama commits what was marked
// before ConsumeClaim returned. What is acknowledged beyond the prefix goes into the commit's metadata
// (progress.go), so that the next owner does not run it again.
//
// # Non-obvious
//
//   - A message's context ends with its ack or nack and not with Close or a rebalance: an outcome
//     that a handler has is worth writing down whoever owns the partition by then. It ends without an answer only
//     when Drain's context or the close timeout has run out and the message is given up.
//   - The window bounds the span, acknowledged records included. Otherwise one stuck record would let the
//     part that a crash repeats grow without limit.
//   - The return of any ConsumeClaim ends the session of the whole member, so a claim never returns early. In a cooperative
//     group it returns after sarama has closed its channel, which is after sarama has taken the partition away.
//   - In a cooperative group a session lasts for many assignments. The strategy reports each one (membership.go), because sarama
//     shows a claim its end only by a closed channel, and a reader whose window is full reads no channel.
//   - A cooperative member asks its coordinator by a client of its own. A broker answers the requests of a connection in order,
//     and a join only when all members have joined: fetches behind it would wait as long.
//   - Records are copied out of sarama's memory: a record is a slice of the response it came in, and one
//     that waits an hour to become due would keep megabytes.
//   - Memory ahead of the handlers, for P partitions of a subscription: window_bytes (16 MiB) in all windows, plus one
//     record per partition that is always let in, plus 4 records and one response per partition in sarama (a response
//     has fetch_bytes, 4 KiB, per partition, or one larger batch). With 8 partitions and records of 1 MiB that is
//     16 + 8 + 32 + 8 MiB, with records of 100 bytes it is a few MiB.
//   - sarama decompresses a response at once and counts nothing, so only a small response is a bounded one: fetch_bytes is
//     before decompression. Its MaxDecompressedBatchSize is not used, because one batch over it would stop the partition.
//   - A due time is believed on retry topics only, which the Registry knows. Any client can write the header.
//   - Records that are not due are moved to the end of their topic when they leave no room, at most a window per
//     partition every 10 seconds: rewriting costs little. Nothing is moved when nothing waits behind it or for its bytes, and the pause
//     doubles, up to 160 seconds, with each pass through the topic that reads no record that is due.
//   - The group's client waits for a partition without a leader (patient.go): to sarama, a claim that can't begin is the
//     end of the whole member's session.
//   - The key decides the partition by murmur2, as in Java's producer, and not by sarama's default hash, so that
//     one key has one partition whoever publishes.
//   - A batch is kept under 1 MB whatever max_message_bytes is, because brokers refuse a larger batch
//     by default and sarama does not split it. Larger messages go one a request by a second producer.
//   - Aborted transactions are not read (read_committed): such a record was never sent, as far as its writer knows.
package kafka
