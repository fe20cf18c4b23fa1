// Package eventservice finds out which events exist and how many seats they have: from the Event
// Service, with one call over all instances.
package eventservice
