// Package kafka moves messages by Apache Kafka: windowed group sources, broadcast sources, and durable
// sinks. A route reads a topic and publishes to others (Example is the complete program):
//
//	r.Route(pipeline.Route{
//		Name:   "greet",
//		From:   g.kafka.Source("names", "greeter"),
//		Handle: greet,
//		To:     g.kafka.Sink("greetings"),
//		Policy: pipeline.Policy{DeadLetter: g.kafka.Sink("names-dead")},
//	})
//
// The publisher and the group subscriber are our own, on sarama, because those of watermill-kafka fall
// short here. Its group subscriber has one unacknowledged message per partition in flight, spins on a
// record that it can't decode, and drops the acks of a clean shutdown, while its publisher waits for the
// broker after each message. watermill-kafka supplies the wire format (its DefaultMarshaler and the name
// of its uuid header) and the subscriber without a group behind Broadcast.
//
// # How a record lives
//
//	fetched --> window --> due? --> delivered --> ack  --> mark the contiguous prefix --> commit
//	                                    ^     --> nack --> pause --+
//	                                    +--------------------------+
//
// Each partition of a member has a claim, and each claim has a window: the records from the first
// unacknowledged to the last one read, at most Flow.Window of them. Each record gets a deliverer, a
// goroutine that waits until the record is due, delivers it, and waits for the answer. After a nack and a
// pause it delivers the record again. Only the contiguous acknowledged prefix of the window is marked for
// commit.
//
// When the session ends (a rebalance, Drain, Close) the claim stops reading and delivering. It waits for
// the records in flight, marks, and only then returns the partition, because sarama commits the marks made
// before ConsumeClaim returns. Acknowledged offsets beyond the prefix go into the commit's metadata
// (progress.go), so that the next owner does not run these records again.
//
// # Non-obvious
//
//   - A position belongs to one log. A topic that is deleted and created again has the same name and
//     another log, in which sarama would go on at the old offset. A claim therefore remembers the topic's
//     id from before its position was chosen, its commits name that id, and a position of another id is
//     not used (topic_id.go).
//   - A message's context ends with its ack or nack and not with Close or a rebalance, because the outcome
//     of a handler is worth storing even when the partition has another owner by then. It ends without an
//     answer only when Drain's context or the close timeout has ended.
//   - The window bounds the span, acknowledged records included. Otherwise one stuck record would let the
//     part that a crash repeats grow without limit.
//   - The return of any ConsumeClaim ends the session of the member, so a claim never returns early. In a
//     cooperative group it returns after sarama has closed its channel, which sarama does after it has
//     revoked the partition.
//   - In a cooperative group a session lasts for many assignments, so the assignor reports each one
//     (membership.go). To a claim, sarama shows its end only by a closed channel, and a reader whose window is
//     full reads no channel.
//   - A cooperative member has a client of its own for its coordinator. A broker answers the requests of a
//     connection in order, and a join only when all members have joined, so fetches behind the join would
//     wait as long.
//   - Records are copied out of sarama's memory. A record is a slice of the response it came in, so one
//     that waits an hour until it is due would keep megabytes.
//   - Memory ahead of the handlers has three parts per subscription. All windows hold window_bytes
//     (16 MiB), and each partition may always read one more record. In sarama each partition has 4 records
//     and one response, which is fetch_bytes (4 KiB) or one larger batch. With 8 partitions and records of
//     1 MiB that is 16 + 8 + 32 + 8 MiB, with records of 100 bytes a few MiB.
//   - sarama decompresses a response at once and counts nothing, and fetch_bytes is before decompression,
//     so only a small response is bounded. sarama's MaxDecompressedBatchSize is not used, because one
//     batch over it would stop the partition.
//   - A due time counts on retry topics only, because any client can write the header.
//   - Records that are not due are moved to the end of their topic when they leave no room, at most one
//     window per partition every 10 seconds. A record stays when nothing waits behind it or for its bytes.
//     Each pass through the topic without a due record doubles the pause, up to 160 seconds.
//   - The group's client waits for a partition without a leader (waiting_client.go), because to sarama a
//     claim that can't begin ends the session of the member.
//   - The key decides the partition by murmur2, as in Java's producer. With sarama's default hash one key
//     would have two partitions when a Java program publishes too.
//   - A batch is kept under 1 MB whatever max_message_bytes is, because brokers refuse a larger batch by
//     default and sarama does not split it. A second producer sends larger messages, one per request.
//   - Aborted transactions are not read (read_committed).
package kafka
