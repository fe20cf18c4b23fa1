package campaign

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// ErrSimulatorInside reports that the simulated Money API runs inside another process, which alone
// has its journal.
var ErrSimulatorInside = errors.New("the simulated Money API runs inside the service: run `millrace money-simulator` and set plugins.promotion.money_api.url")

// WithExitCode gives an error of the ledger, or of a server that is unavailable, its exit code.
func WithExitCode(err error) error {
	var (
		exit    *app.ExitError
		file    *fs.PathError // its cause, an errno, is a net.Error too
		network net.Error
	)
	switch {
	case errors.As(err, &exit), errors.As(err, &file), errors.Is(err, pipeline.ErrUnavailable):
	case errors.Is(err, ledger.ErrNotFound):
		return app.Bad("%w: the service of these settings has accepted nothing of it; is it another type (%s), or another number? millrace campaign list shows all promotions",
			err, strings.Join(promotiontype.Names(), ", "))
	case errors.Is(err, ErrSimulatorInside):
		return &app.ExitError{Code: app.ExitUsage, Err: err}
	case errors.Is(err, ledger.ErrCancelled), errors.Is(err, ledger.ErrFinished), errors.Is(err, ledger.ErrRefused):
		return &app.ExitError{Code: app.ExitBad, Err: err}
	case errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err)
	}
	return err
}
