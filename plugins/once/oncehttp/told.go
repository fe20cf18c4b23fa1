package oncehttp

import (
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// toldEvery is the time between two log lines that say the same of the credential.
const toldEvery = time.Minute

// told logs whether the API refuses our credential, permission or address.
type told struct{ outage *logs.Outage }

func newTold() told { return told{logs.NewOutage(toldEvery, false)} }

func (t told) refuses(log *slog.Logger, status int, answer string) {
	if times, due := t.outage.Failed(); due {
		log.Error("the api refuses our credential, permission or address", "status", status, "answer", answer, "times", times)
	}
}

func (t told) accepts(log *slog.Logger) {
	if times, due := t.outage.Works(); due {
		log.Info("the api accepts our calls again", "times", times)
	}
}
