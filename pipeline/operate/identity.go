package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// Identity says which instance answers at an address of this machine, so that a command does not take it for one of its
// own deployment.
type Identity struct {
	Instance, Environment string
	// Process is that of Membership, and empty without one or while it does not run.
	Process string
	// Running: its services run. Lost: its Membership has lost the server, so others may not know it.
	Running, Lost bool
}

// IdentityOf returns that of this process.
func IdentityOf(reg *pipeline.Registry) Identity {
	i := Identity{Instance: reg.Env().Instance, Environment: reg.Env().Environment}
	if of := pipeline.Offers[Membership](reg); len(of) > 0 {
		i.Process = of[0].Process()
	}
	return i
}

// memberLimit bounds the question whether an instance is known, because a server that does not answer is another finding.
const memberLimit = time.Second

// Foreign returns why what answers is no instance of the settings of reg. Empty: it is one, or that is not known.
func (i Identity) Foreign(ctx context.Context, reg *pipeline.Registry) string {
	env := reg.Env()
	if i.Environment != env.Environment && i.Environment != "" && env.Environment != "" {
		return fmt.Sprintf("its environment is %q, and that of these settings %q", i.Environment, env.Environment)
	}
	members := pipeline.Offers[Membership](reg)
	switch {
	case len(members) == 0 && i.Process != "":
		return "it shares a server with other instances that these settings do not have"
	case len(members) > 0 && i.Process == "" && i.Running:
		return fmt.Sprintf("it runs without the plugin %s, which these settings have", members[0].Name())
	case len(members) > 0 && i.Process != "" && !i.Lost:
		ctx, cancel := context.WithTimeout(ctx, memberLimit)
		defer cancel()
		switch member, err := members[0].IsMember(ctx, i.Instance, i.Process); {
		case err != nil:
		case member:
			return ""
		default:
			return fmt.Sprintf("it is not among the running instances that the %s of these settings knows", members[0].Name())
		}
	}
	if env.InstanceConfigured && i.Instance != env.Instance {
		return fmt.Sprintf("the instance_id of these settings is %s", env.Instance)
	}
	return ""
}
