package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"syscall"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	readinessPath  = "/readyz"
	conditionsOf   = "?conditions" // of the readiness
	readinessBytes = 1 << 20       // of an answer
	instancePlace  = "instance"
)

// Examinations implements operate.Examined: the readiness of an instance that runs on this machine with
// these settings. It is no failure that none runs.
func (p *Plugin) Examinations() []operate.Examination {
	return []operate.Examination{{Place: instancePlace, Open: func(context.Context) ([]operate.Examine, func(), error) {
		return []operate.Examine{{What: "readiness", Read: func(ctx context.Context) ([]operate.Check, error) {
			addresses := localAddresses(p.config.Listen)
			if len(addresses) == 0 {
				return []operate.Check{{Level: operate.OK, Text: fmt.Sprintf("not asked, because plugins.telemetry.listen is %q, which names no port", p.config.Listen)}}, nil
			}
			return p.readinessOf(ctx, addresses), nil
		}}}, nil, nil
	}}}
}

// localAddresses returns where a server that listens on this machine is reached, without a name that a resolver
// would have to know. The first is the usual one.
func localAddresses(listen string) []string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port == "" || port == "0" {
		return nil
	}
	hosts := []string{host}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		hosts = []string{"127.0.0.1", "::1"}
	}
	for i, host := range hosts {
		hosts[i] = net.JoinHostPort(host, port)
	}
	return hosts
}

// askFirst returns what the first of the addresses says at which a server is, and this address. Without any it is
// the first address with its error.
func askFirst(ctx context.Context, addresses []string) (r Readiness, address string, err error) {
	for i, at := range addresses {
		answer, wrong := askReadiness(ctx, "http://"+at+readinessPath+conditionsOf)
		dial, ok := errors.AsType[*net.OpError](wrong)
		absent := ok && dial.Op == "dial"
		if i == 0 || !absent {
			r, address, err = answer, at, wrong
		}
		if !absent {
			break
		}
	}
	return r, address, err
}

func (p *Plugin) readinessOf(ctx context.Context, addresses []string) []operate.Check {
	readiness, address, err := askFirst(ctx, addresses)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return []operate.Check{{Level: operate.OK, Text: "none runs at " + address}}
	case err != nil:
		return []operate.Check{{
			Level: operate.Warn, Text: fmt.Sprintf("%s does not tell its readiness: %s", address, err),
			Remedy: "look what listens there, or choose another plugins.telemetry.listen",
		}}
	}
	if why := p.foreign(ctx, readiness); why != "" {
		return []operate.Check{{Level: operate.Warn, Text: notOurs(address, readiness, why), Remedy: remedyNotOurs}}
	}
	return readinessChecks(address, readiness)
}

const remedyNotOurs = "give the command the settings of that instance, or choose another plugins.telemetry.listen if one of yours is to run here"

func notOurs(address string, r Readiness, why string) string {
	return fmt.Sprintf("none of this deployment runs at %s, where the instance %s of another one answers: %s", address, r.Instance, why)
}

// foreign returns why an instance that has answered is not one of the settings. Empty: it is, or that is not known.
func (p *Plugin) foreign(ctx context.Context, r Readiness) string {
	reg := p.server.registry
	who := operate.Identity{Instance: r.Instance, Environment: r.Environment, Process: r.Process, Running: r.Phase == string(running)}
	if of := pipeline.Offers[operate.Membership](reg); len(of) > 0 {
		check, known := r.Checks[of[0].Name()]
		who.Lost = known && !check.OK // its presence may have ended with the server
	}
	return who.Foreign(ctx, reg)
}

// askReadiness asks this machine, so no proxy is used.
func askReadiness(ctx context.Context, url string) (r Readiness, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return r, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return r, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusServiceUnavailable {
		return r, fmt.Errorf("%s answered %s", readinessPath, answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, readinessBytes)).Decode(&r); err != nil {
		return r, fmt.Errorf("the answer of %s is no readiness: %w", readinessPath, err)
	}
	if r.Phase == "" {
		return r, fmt.Errorf("the answer of %s is no readiness: it has no phase", readinessPath)
	}
	return r, nil
}

// readinessChecks has a line per check that fails.
func readinessChecks(address string, r Readiness) (checks []operate.Check) {
	if r.Phase != string(running) { // then no check runs
		return []operate.Check{{
			Level: operate.Warn, Text: fmt.Sprintf("%s is %s", address, r.Phase),
			Remedy: "ask again, because it serves only while it is running",
		}}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Checks)) {
		if result := r.Checks[name]; !result.OK {
			checks = append(checks, operate.Check{
				Name: instancePlace + " " + name, Level: operate.Fail, Text: fmt.Sprintf("%s says: %s", address, result.Error),
				Remedy: "repair what it names; " + readinessPath + "?verbose has the details", Runbook: "docs/operating.md#probes",
			})
		}
	}
	if len(checks) == 0 {
		checks = []operate.Check{{Level: operate.OK, Text: fmt.Sprintf("%s is ready, and its %d checks pass", address, len(r.Checks))}}
	}
	for _, c := range r.Conditions {
		if c.Level != operate.OK {
			c.Name = instancePlace + " " + c.Name
			checks = append(checks, c.Check)
		}
	}
	return checks
}

// ReadConditions implements operate.ConditionReader.
func (p *Plugin) ReadConditions(ctx context.Context) (conditions []operate.Condition, instance string, err error) {
	addresses := localAddresses(p.config.Listen)
	if len(addresses) == 0 {
		return nil, "", fmt.Errorf("plugins.telemetry.listen is %q, which names no port", p.config.Listen)
	}
	r, address, err := askFirst(ctx, addresses)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, address, fmt.Errorf("none runs at %s (plugins.telemetry.listen)", address)
	case err != nil:
		return nil, address, fmt.Errorf("%s does not tell them: %w", address, err)
	}
	if why := p.foreign(ctx, r); why != "" {
		return nil, address, fmt.Errorf("%s; %s", notOurs(address, r, why), remedyNotOurs)
	}
	switch {
	case r.Phase != string(running):
		return nil, address, fmt.Errorf("%s is %s", address, r.Phase)
	}
	return r.Conditions, address, nil
}

var (
	_ operate.Examined        = (*Plugin)(nil)
	_ operate.ConditionReader = (*Plugin)(nil)
)
