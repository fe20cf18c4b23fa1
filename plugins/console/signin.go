package console

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// login finds out who sends a request, in one of the ways of the settings. Build it with newLogin.
type login struct {
	config  Config
	users   *users          // nil: no passwords
	proxies signin.Networks // of auth.header, and of what may have many connections
	keys    *signin.Keys    // nil: no tokens
}

var (
	errNobody = errors.New("sign in first")
	errNoRole = errors.New("you have no role at this console: an administrator can give you or one of your groups one in plugins.console.roles or plugins.console.group_roles")
)

// newLogin returns nil if nobody signs in.
func newLogin(c Config, log *slog.Logger) (*login, error) {
	l := &login{config: c}
	var err error
	if l.proxies, err = signin.NewNetworks(c.TrustedProxies); err != nil {
		return nil, err
	}
	switch {
	case c.UsersFile != "":
		if l.users, err = newUsers(c.UsersFile, log); err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(c.Roles)) {
			if l.users.file.Value(context.Background()).hashes[name] == nil {
				log.Warn("plugins.console.roles names nobody of users_file", slog.String("user", name), slog.String("file", c.UsersFile))
			}
		}
		return l, nil
	case !c.signsIn():
		return nil, nil
	}
	if c.Auth.HasKeys() {
		l.keys, err = signin.NewKeys(c.Auth, "plugins.console.auth", log)
	}
	return l, err
}

// person returns who sends a request. The error wraps errNobody, errNoRole, signin.ErrUnavailable, or is a
// *signin.BadUserError.
func (l *login) person(r *http.Request) (person, error) {
	if l.users != nil {
		if !l.users.allow(r) {
			return person{}, errNobody
		}
		name, _, _ := r.BasicAuth()
		p := person{name, operate.Viewer}
		if role := l.config.Roles[name]; role != "" {
			p.Role = role
		}
		return p, nil
	}
	name, groups, err := l.find(r)
	if err != nil {
		return person{}, err
	}
	p := person{Name: name, Role: l.config.Roles[name]}
	for _, group := range groups {
		if role := l.config.GroupRoles[group]; role != "" && (p.Role == "" || role.Includes(p.Role)) {
			p.Role = role
		}
	}
	if p.Role == "" {
		return p, errNoRole
	}
	return p, nil
}

// find returns the user that a trusted proxy or a token names, with the groups.
func (l *login) find(r *http.Request) (name string, groups []string, err error) {
	if l.proxies.Contain(signin.Peer(r)) {
		user, named, err := l.config.Auth.Named(r.Header)
		if named || err != nil {
			return user.ID, l.groupsOfHeader(r), err
		}
	}
	token := l.token(r)
	if l.keys == nil || token == "" {
		return "", nil, errNobody
	}
	claims := map[string]any{}
	user, err := l.keys.User(r.Context(), token, &claims)
	if errors.Is(err, signin.ErrNoUser) {
		return "", nil, errNobody
	}
	return user.ID, groupsOf(claims[l.config.GroupsClaim]), err
}

// groupsOfHeader returns the groups that the proxy has written. A second value may be that of the client.
func (l *login) groupsOfHeader(r *http.Request) []string {
	values := r.Header.Values(l.config.GroupsHeader)
	if l.config.GroupsHeader == "" || len(values) != 1 {
		return nil
	}
	var groups []string
	for group := range strings.SplitSeq(values[0], ",") {
		groups = append(groups, strings.TrimSpace(group))
	}
	return groups
}

// groupsOf returns the groups of a claim, which is a list or one group.
func groupsOf(claim any) []string {
	var groups []string
	switch claim := claim.(type) {
	case string:
		groups = append(groups, claim)
	case []any:
		for _, one := range claim {
			if group, ok := one.(string); ok {
				groups = append(groups, group)
			}
		}
	}
	return groups
}

// token returns the token of a request. It is not taken from the address, which logs and histories keep.
func (l *login) token(r *http.Request) string {
	if l.config.TokenHeader != "" {
		return r.Header.Get(l.config.TokenHeader)
	}
	token, _ := signin.Bearer(r.Header)
	return token
}

// refuse answers a request of nobody who may see the console.
func (l *login) refuse(w http.ResponseWriter, err error) {
	_, bad := errors.AsType[*signin.BadUserError](err)
	switch {
	case errors.Is(err, errNoRole):
		http.Error(w, "Not allowed: "+err.Error()+".", http.StatusForbidden)
	case errors.Is(err, signin.ErrUnavailable):
		http.Error(w, "The keys of plugins.console.auth.jwks_url could not be fetched. The log of this instance has the reason.", http.StatusServiceUnavailable)
	case bad:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case l.users != nil:
		w.Header().Set("WWW-Authenticate", `Basic realm="console", charset="UTF-8"`)
		http.Error(w, "Sign in with a name and password of plugins.console.users_file.", http.StatusUnauthorized)
	case l.config.TokenHeader != "":
		http.Error(w, "Sign in first: this console takes a token in the header "+l.config.TokenHeader+" (plugins.console.token_header).", http.StatusUnauthorized)
	default:
		if l.keys != nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="console"`)
		}
		http.Error(w, "Sign in first: plugins.console.auth says which proxy or sign-in has to name you.", http.StatusUnauthorized)
	}
}
