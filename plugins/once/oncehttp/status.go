package oncehttp

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	"github.com/millrace-io/millrace/plugins/once"
)

// Statuses says what answers prove by their status alone, for an API whose errors have no code, or whose
// success has no receipt. A name is a status such as "404", or a class of them such as "4xx"; the status
// counts before its class. A proxy between the two must then never answer with such a status by itself,
// because it would be taken at its word.
type Statuses map[string]once.Class

var statusForm = regexp.MustCompile(`^([2-5]xx|[2-5][0-9][0-9])$`)

// passing are the 4xx that say nothing about an effect: the credential is refused, or the time is wrong. A
// class that is Rejected does not include them.
var passing = []int{ //nolint:gochecknoglobals // a constant, but Go has none of this type
	http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
}

// CheckStatus returns why a name can't be one of Statuses with the class.
func CheckStatus(name string, class once.Class, lookup bool) error {
	classes := []once.Class{once.Done, once.Rejected, once.Retry, once.Unclear}
	if lookup {
		classes = []once.Class{once.Done, once.NotDone, once.Unclear}
	}
	switch {
	case !statusForm.MatchString(name):
		return fmt.Errorf("must be a status such as 404 or a class such as 4xx, from 2xx to 5xx, got %q", name)
	case !slices.Contains(classes, class):
		return fmt.Errorf("a status can't be %s, only one of %v", class, classes)
	case class == once.Rejected && name == "401":
		return errors.New("a 401 is about the credential, so it must not fail an effect")
	case class == once.Done && (name[0] == '3' || name[0] == '5'):
		return fmt.Errorf("%s can't mean that an effect was done: it is a redirect or an error of the server", name)
	}
	return nil
}

// of returns the class of a status, if there is one.
func (s Statuses) of(status int) (once.Class, bool) {
	exact := strconv.Itoa(status)
	if class, found := s[exact]; found {
		return class, true
	}
	class, found := s[exact[:1]+"xx"]
	if found && class == once.Rejected && slices.Contains(passing, status) {
		class = once.Retry
	}
	return class, found
}

// done reports whether a 2xx means that an effect was done.
func (s Statuses) done() bool {
	for name, class := range s {
		if class == once.Done && name[0] == '2' {
			return true
		}
	}
	return false
}

// classifyStated completes the answer of a status whose class is stated. given says whether it has a
// Retry-After.
func classifyStated(m *Mapping, r *reply, req *request, a once.Answer, given bool) (once.Answer, verdict) {
	switch a.Class {
	case once.Done:
		a.Text, a.Code = "", ""
		return classifyDoneBefore(m, req, r, a)
	case once.Rejected, once.NotDone:
		return a, healthy
	case once.Retry:
		return retryStated(r.status, a, given)
	}
	return a, failing
}

// retryStated separates an answer that asks for the same request again by whom it concerns.
func retryStated(status int, a once.Answer, given bool) (once.Answer, verdict) {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable && given:
		a.Class = once.Throttled
		return a, throttling
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		a.Class = once.Misconfigured
		return a, misconfigured
	}
	return a, failing
}
