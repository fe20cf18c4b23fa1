package oncehttp

import (
	"context"
	"log/slog"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/reach"
)

// Register opens the client when the services start, and closes it when they stop. It adds the client's
// metrics, its servers to the topology and to doctor, and what the client knows of the API to the graph and the routes. A plugin
// with a kind calls it in its own Register.
func (c *Client) Register(r *pipeline.Registry) {
	r.Service("oncehttp."+c.mapping.Name, service{c, r.Env().Logger})
	r.Collect(c.Collectors()...)
	r.Offer(c) // it is an operate.Conditioned
	reach.Servers{Name: "api " + c.mapping.Name, URL: c.config.URL, Client: c.config.Config}.Register(r)
}

type service struct {
	client *Client
	log    *slog.Logger
}

// Start implements pipeline.Service.
func (s service) Start(context.Context) error { return s.client.Open(s.log) }

// Stop implements pipeline.Service.
func (s service) Stop(context.Context) error { return s.client.Close() }
