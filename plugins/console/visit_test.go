package console

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// desk is a plugin whose page differs by role: it leads to an action, and masks what some may see.
type desk struct{ opened *atomic.Int64 }

func (desk) Name() string                          { return "desk" }
func (d desk) Register(r *pipeline.Registry) error { r.Offer(d); return nil }

func (d desk) Console() []console.Page {
	panels := []console.Panel{{
		Name: "desk", Title: "Desk", Values: []string{"of"}, Actions: []string{"desk open"},
		Load: func(_ context.Context, q console.Query) (console.Block, error) {
			time.Sleep(100 * time.Millisecond)
			return console.Record{
				Fields: console.Stats{{Name: "Of", Cell: console.Word("of " + q.Text("of"))}, {Name: "Opened", Cell: console.Count(d.opened.Load())}},
				Folds:  []console.Fold{{Title: "Payload", Payload: []byte(`{"secret": "hunter2"}`)}},
			}, nil
		},
		Reveal: func(context.Context, console.Query, operate.Use) error { return nil },
	}}
	return []console.Page{{Path: "desk", Title: "Desk", Panels: panels}, {Path: "other", Title: "Other", Panels: panels}}
}

func (d desk) Operations() operate.Operations {
	return operate.Operations{Actions: []operate.Action{{
		About: operate.About{Name: "desk open", Short: "Open it", Examples: []string{"desk open"}}, Danger: operate.Safe, Role: operate.Operator,
		Preview: func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error) {
			return operate.Answer{}, nil
		},
		Do: func(context.Context, *pipeline.Registry, operate.Input, operate.Use) (operate.Answer, error) {
			d.opened.Add(1)
			return operate.Answer{}, nil
		},
	}}}
}

// visited is a console with a desk, without a listener, so that its time may be that of a test.
type visited struct {
	t      *testing.T
	server *server
	made   atomic.Int64 // pages
}

// startVisited starts it. Two people have each role, and a proxy names who sends a request.
func startVisited(t *testing.T, more ...pipeline.Plugin) *visited {
	t.Helper()
	p := New()
	p.config.Auth.Header, p.config.TrustedProxies = "X-User", []string{"192.0.2.0/24"}
	p.config.Roles = map[string]operate.Role{"vic": operate.Viewer, "val": operate.Viewer, "olga": operate.Operator, "otto": operate.Operator, "ada": operate.Admin, "abe": operate.Admin}
	require.NoError(t, p.config.Validate())
	_, err := pipeline.NewRegistry(pipeline.Env{Instance: "rig"}, append(more, desk{new(atomic.Int64)}, p)...)
	require.NoError(t, err)
	v := &visited{t: t, server: p.server}
	require.NoError(t, p.server.Start(t.Context()))
	v.server.templates.Funcs(template.FuncMap{"kind": func(b console.Block) string {
		v.made.Add(1) // the page has one block
		return kindOf(b)
	}})
	return v
}

// get returns a page for a person, as a browser reads it, or as the script of a page does. The headers are name: value.
func (v *visited) get(path, person string, refresh bool, headers ...string) string {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	r.Header.Set("X-User", person)
	if refresh {
		r.Header.Set(refreshHeader, "yes")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	answer := httptest.NewRecorder()
	v.server.http.Handler.ServeHTTP(answer, r)
	assert.Equal(v.t, http.StatusOK, answer.Code, answer.Body)
	return answer.Body.String()
}

// refreshed has tabs read a page for a minute, and returns how many pages were made for them.
func (v *visited) refreshed(tabs int) int64 {
	const interval, minute = 2 * time.Second, time.Minute
	before := v.made.Load()
	var open sync.WaitGroup
	for i := range tabs {
		open.Go(func() {
			time.Sleep(time.Duration(i) * interval / time.Duration(tabs))
			for range minute / interval {
				v.get("/desk", "vic", true)
				time.Sleep(interval)
			}
		})
	}
	open.Wait()
	return v.made.Load() - before
}

// shelves is a plugin with a page of panels that are read at different times. It counts how often.
type shelves struct{ always, seldom, still atomic.Int64 }

func (*shelves) Name() string                          { return "shelves" }
func (s *shelves) Register(r *pipeline.Registry) error { r.Offer(s); return nil }

func (s *shelves) Console() []console.Page {
	counting := func(p console.Panel, n *atomic.Int64) console.Panel {
		p.Title = p.Name
		p.Load = func(context.Context, console.Query) (console.Block, error) {
			return console.Text(fmt.Sprint("read ", n.Add(1))), nil
		}
		return p
	}
	return []console.Page{{Path: "shelves", Title: "Shelves", Panels: []console.Panel{
		counting(console.Panel{Name: "always"}, &s.always), counting(console.Panel{Name: "seldom", Every: 5 * time.Second}, &s.seldom),
		counting(console.Panel{Name: "still", Still: true}, &s.still),
	}}}
}

// What costs a server much is read again less often than the page, and says how old it is. What stays as it is is not
// read again. A person who opens or reloads the page gets all of it as it is then.
func TestSomePanelsAreReadLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shown := &shelves{}
		v := startVisited(t, shown)
		require.NotContains(t, v.get("/shelves", "vic", false), "old.")
		for second := 2; second <= 30; second += 2 {
			time.Sleep(2 * time.Second)
			text := v.get("/shelves", "vic", true)
			require.Contains(t, text, fmt.Sprint("read ", 1+second/2), "with each page")
			require.NotContains(t, text, `id="still"`, "the script leaves its section alone")
			if age := second % 6; age == 0 {
				require.NotContains(t, text, "old.")
			} else {
				require.Contains(t, text, fmt.Sprintf("These values are %ds old.", age))
			}
		}
		require.Equal(t, []int64{16, 6, 1}, []int64{shown.always.Load(), shown.seldom.Load(), shown.still.Load()})
		time.Sleep(2 * time.Second)
		require.NotContains(t, v.get("/shelves", "vic", false), "old.")
		require.Equal(t, []int64{17, 7, 2}, []int64{shown.always.Load(), shown.seldom.Load(), shown.still.Load()})
		require.NoError(t, v.server.Stop(t.Context()))
	})
}

// However many tabs are open, a page is made once a second for them, and what was made for them is not kept.
func TestTabsShareTheirPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := startVisited(t)
		one, many := v.refreshed(1), v.refreshed(50)
		require.EqualValues(t, 30, one)
		require.Less(t, one, many, "a tab does not get what is as old as its interval")
		require.LessOrEqual(t, many, 2*one)

		before := v.made.Load()
		var open sync.WaitGroup
		for range 50 {
			open.Go(func() { v.get("/desk", "vic", true) })
		}
		open.Wait()
		require.EqualValues(t, 1, v.made.Load()-before, "one page is made for all who wait")
		time.Sleep(v.server.refresh.fresh)
		synctest.Wait()
		require.Empty(t, v.server.copies.byKey)

		before = v.made.Load()
		for range 2 {
			v.get("/desk", "vic", false)
		}
		require.EqualValues(t, 2, v.made.Load()-before, "what a person does is answered with a page of its own")
		require.NoError(t, v.server.Stop(t.Context()))
	})
}

// Whoever refreshes a page gets what they would get by a look at it, whoever has refreshed it just now.
func TestCopiesAreForEqualVisitsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := startVisited(t)
		var people []string
		for name := range v.server.plugin.config.Roles {
			people = append(people, name)
		}
		paths := []string{"/desk", "/other", "/desk?of=7", "/desk?of=8", "/actions", "/audit", "/"}
		seen := map[string]string{} // the answers to a look, by path and person
		for _, path := range paths {
			for _, person := range people {
				seen[path+person] = v.get(path, person, false)
			}
		}
		require.Equal(t, seen["/desk"+"vic"], seen["/desk"+"val"])
		require.NotEqual(t, seen["/desk"+"vic"], seen["/desk"+"olga"], "an operator may use the action")
		require.NotEqual(t, seen["/desk"+"olga"], seen["/desk"+"ada"], "an admin may see what is masked")
		require.NotEqual(t, seen["/actions"+"ada"], seen["/actions"+"abe"], "the page names the person")
		before := time.Now()
		for _, path := range paths {
			for _, person := range people {
				require.Equal(t, seen[path+person], v.get(path, person, true), "%s of %s", path, person)
			}
		}
		require.Equal(t, before, time.Now(), "the copies were fresh")
		require.NoError(t, v.server.Stop(t.Context()))
	})
}

// After an action no tab gets a page of before.
func TestCopiesAreRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := startVisited(t)
		for n := range 3 {
			require.Contains(t, v.get("/desk", "vic", true), "<dt>Opened</dt><dd>"+strconv.Itoa(n)+"</dd>")
			a, found := v.server.findAction("desk/open")
			require.True(t, found)
			one, err := v.server.begin(&use{id: fmt.Sprintf("use-%d", n), action: a, face: operate.FaceAPI})
			require.NoError(t, err)
			<-one.ended
		}
		require.NoError(t, v.server.Stop(t.Context()))
	})
}

// The script of the pages says that it refreshes, and a program that does so still gets its own format.
func TestWhoGetsCopies(t *testing.T) {
	t.Parallel()
	script, _ := asset(liveScript)
	require.Contains(t, string(script), `headers: { "`+refreshHeader+`": "yes" }`)
	synctest.Test(t, func(t *testing.T) {
		v := startVisited(t)
		for range 2 {
			require.Contains(t, v.get("/desk", "vic", true), "<!DOCTYPE html>")
			require.NotContains(t, v.get("/desk", "vic", true, "Accept: text/plain"), "<!DOCTYPE html>")
		}
		require.NoError(t, v.server.Stop(t.Context()))
	})
}

// Anybody may refresh any address, so copies are bounded. Whoever finds no room for one gets a page of their own.
func TestCopiesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := startVisited(t)
		var open sync.WaitGroup
		for i := range 2 * maxCopies {
			open.Go(func() { assert.Contains(t, v.get("/desk?of="+strconv.Itoa(i), "vic", true), "of "+strconv.Itoa(i)) })
		}
		open.Wait()
		require.Len(t, v.server.copies.byKey, maxCopies)
		v.get("/desk?of=another", "vic", true)
		require.Len(t, v.server.copies.byKey, maxCopies, "the oldest has made room")
		require.NoError(t, v.server.Stop(t.Context()))
	})
}
