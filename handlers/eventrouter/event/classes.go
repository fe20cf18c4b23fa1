package event

import (
	"fmt"

	"github.com/millrace-io/millrace/pipeline"
)

// The classes of entries that are no events. An event that exceeds a size limit has the class
// pipeline.ClassTooLarge.
const (
	// ClassMissingJobID is the class of an event without job_id.
	ClassMissingJobID = "missing_job_id"
	// ClassBadSeq is the class of a numbered event whose seq is absent or no positive integer.
	ClassBadSeq = "bad_seq"
	// ClassBadEvent is the class of an event with another field that is not valid.
	ClassBadEvent = "bad_event"
	// ClassSeqConflict is the class of a terminal event whose number another event of the job has.
	ClassSeqConflict = "seq_conflict"
)

// Classes returns the classes with their explanations, for Registry.ErrorClasses.
func Classes() []pipeline.ErrorClass {
	return []pipeline.ErrorClass{
		{Name: ClassMissingJobID, Cause: "an event of a job without `job_id`", Action: "fix its producer; then discard"},
		{Name: ClassBadSeq, Cause: "a numbered event without a valid `seq`", Action: "fix its producer, or add its stage to `transient_stages` and replay"},
		{Name: ClassBadEvent, Cause: "an event with a field that is not valid", Action: "read the error; fix its producer; then discard"},
		{Name: ClassSeqConflict, Cause: "the end of a job with the `seq` of another event, so its watchers wait", Action: "fix its producer; `jobs publish` another end, or `jobs reset` the job and replay"},
	}
}

func refuse(class, format string, args ...any) error {
	return pipeline.WithClass(pipeline.Permanent(fmt.Errorf(format, args...)), class)
}
