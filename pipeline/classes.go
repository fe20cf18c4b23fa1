package pipeline

import "slices"

// ErrorClass is a class of errors: the name that dead letters, logs and metrics show, and what an
// operator does about it.
type ErrorClass struct {
	Name   string // snake_case, such as undecodable
	Cause  string // what happened
	Action string // what an operator does about a dead letter of this class
}

// Error classes that any route can have. Plugins register theirs with Registry.ErrorClasses.
const (
	// ClassUndecodable is the class of payloads that cannot be decoded.
	ClassUndecodable = "undecodable"
	// ClassInvalid is the class of payloads that were decoded, and that Validate refused.
	ClassInvalid = "invalid"
	// ClassTooLarge is the class of payloads and records that exceed a size limit.
	ClassTooLarge = "too_large"
	// ClassDeliveryLimit is the class of messages that reached Policy.MaxDeliveries.
	ClassDeliveryLimit = "delivery_limit"
	// ClassPanic is the class of messages whose handler panicked.
	ClassPanic = "panic"

	classPermanent = "permanent"
	classTimeout   = "timeout"
	classOther     = "error"
)

func ownClasses() []ErrorClass {
	return []ErrorClass{
		{ClassInvalid, "the payload was decoded, and its values are not valid", "the publisher corrects and publishes it again: discard; or this version is fixed: replay"},
		{ClassUndecodable, "the payload cannot be decoded, or has a form that is not accepted", "the publisher corrects and publishes it again: discard; or this version is fixed: replay"},
		{ClassTooLarge, "the payload or the record exceeds a size limit", "the publisher makes it smaller and publishes it again: discard"},
		{ClassDeliveryLimit, "the message was delivered `max_deliveries` times and failed each time", "read the error and the log; fix the cause, then replay"},
		{ClassPanic, "the handler panicked", "read the stack in the log; fix the handler, then replay"},
		{classPermanent, "the handler refused the message and named no class", "read the error; fix the cause, then replay, or discard"},
		{classTimeout, "the last attempt exceeded its time limit", "find out what is slow; then replay"},
		{classOther, "the last attempt failed with an error that has no class", "read the error and the log; fix the cause, then replay"},
	}
}

// ErrorClasses adds the classes of the plugin that registers. Each name belongs to one plugin.
func (r *Registry) ErrorClasses(classes ...ErrorClass) {
	for _, c := range classes {
		r.claim("error class", c.Name)
	}
	r.classes = append(r.classes, classes...)
}

// AllErrorClasses returns the registered classes, those of this package first. Handlers may use
// others.
func (r *Registry) AllErrorClasses() []ErrorClass { return slices.Clone(r.classes) }
