package kafka

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
)

var (
	// errUnavailable is wrapped by the error of a start that ended before a broker answered. It is
	// a pipeline.ErrUnavailable, for which the program exits with the code of a missing server.
	errUnavailable = fmt.Errorf("kafka: %w", pipeline.ErrUnavailable)
	// ErrTopicMissing means that a topic does not exist. It is wrapped by the error of a Scan, and
	// by that of a start when create_topics is off. It is a pipeline.ErrUnavailable too. An
	// operator must create the topics.
	ErrTopicMissing error = missingTopicsError{}
	// errNotStarted is returned while the kafka service is not running. Open sources and publish
	// only between its Start and its Stop.
	errNotStarted = errors.New("the kafka service is not started")
)

// missingTopicsError is ErrTopicMissing. Its text does not call the brokers unavailable.
type missingTopicsError struct{}

func (missingTopicsError) Error() string { return "kafka: topics are missing" }
func (missingTopicsError) Unwrap() error { return pipeline.ErrUnavailable }

// classInvalidRecord is the error class of a record that its topic refuses for a reason other than
// its size. An example is a record without a key on a compacted topic. It is permanent.
const classInvalidRecord = "invalid_record"

// classProcessDeath is the error class of a record that was running at the deaths of several
// processes. Its handler is not called again, so it is permanent.
const classProcessDeath = "process_death"

// classInvalidTimestamp is the error class of a record whose time its topic refuses. The time is that
// of the publishing instance, whose clock differs from the broker's. It is not permanent: the record
// can be published once the clocks agree.
const classInvalidTimestamp = "invalid_timestamp"

func errorClasses() []pipeline.ErrorClass {
	return []pipeline.ErrorClass{{
		Name: classInvalidTimestamp, Cause: "the topic refuses the record's time, because it is too far from the broker's clock",
		Action: "set the clocks of this instance and of the brokers right, or change the limits of the topic (`message.timestamp.*`); then replay",
	}, {
		Name: classProcessDeath, Cause: "several processes died while they ran the record",
		Action: "find out in the logs of the instances why they died (memory, a fatal error); fix the cause, then replay",
	}, {
		Name: classInvalidRecord, Cause: "the topic refuses the record, for another reason than its size",
		Action: "read the broker's reason in the error; fix topic or producer, then replay",
	}}
}

// fatal says whether err is permanent: an operator must change a permission or a name.
func fatal(err error) bool {
	for _, f := range []error{
		sarama.ErrTopicAuthorizationFailed, sarama.ErrGroupAuthorizationFailed, sarama.ErrClusterAuthorizationFailed,
		sarama.ErrInvalidTopic, sarama.ErrInvalidGroupId,
		sarama.ErrInconsistentGroupProtocol, // no balance in common with the other members
		sarama.ErrFencedInstancedId,         // another process has the same instance_id
	} {
		if errors.Is(err, f) {
			return true
		}
	}
	var conf sarama.ConfigurationError
	return errors.As(err, &conf)
}
