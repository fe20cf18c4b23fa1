package room

import (
	"slices"

	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
)

// lottery is the draw of a room. It has at most one.
type lottery struct {
	cut    int64            // the newest index at the freeze; 0: not frozen yet
	frozen map[string]int64 // the index of each user of the pre-queue; nil: none is frozen
	places []string         // the users in the drawn order
	hashes []shuffle.Hash   // of these users
	digest shuffle.Hash
	drawn  int // places that are stored
}

func shuffles(c Change) bool { return c.Mode != nil && *c.Mode == Shuffle }

// shuffled returns the state after a change, in which a pre-queue may begin.
func (m *model) shuffled(c Change, next string) (string, error) {
	begins := c.Verb == Open && m.cut == 0 && (shuffles(c) || c.Mode == nil && m.mode == Shuffle)
	switch {
	case c.Verb == Open && m.state == closed && m.frozen != nil,
		c.Verb == Open && m.cut > 0 && shuffles(c),
		c.Verb == Set && m.commitment == "" && shuffles(c),
		begins && next != preQueued && len(m.waiting) > 0:
		return "", ErrConflict
	case begins:
		return preQueued, nil
	}
	return next, nil
}

// freeze ends the pre-queue.
func (m *model) freeze() {
	m.state, m.cut, m.frozen = drawing, max(m.last, m.now), map[string]int64{}
	for u, w := range m.waiting {
		m.frozen[u] = w.index
	}
	m.last = m.cut + int64(len(m.waiting))
}

// shuffle orders the frozen users.
func (m *model) shuffle(event, secret string) {
	users, hashes := m.cohort(), []shuffle.Hash{}
	for _, u := range users {
		hashes = append(hashes, shuffle.User(event, u))
	}
	m.digest, m.places, m.hashes = shuffle.Digest(hashes), nil, nil
	for _, i := range shuffle.New(secret, m.digest).Order(hashes) {
		m.places, m.hashes = append(m.places, users[i]), append(m.hashes, hashes[i])
	}
}

// part gives the next users their places. most is the maximum size of the part.
func (m *model) part(start, most int) {
	if start != m.drawn {
		return
	}
	for _, u := range m.places[start:min(start+most, len(m.places))] {
		m.drawn++
		index := m.cut + int64(m.drawn)
		if w := m.waiting[u]; w != nil {
			if w.index <= m.cut { // else the user has left, and entered again
				w.index = index
			}
		} else if g := m.gone[u]; g.absent > g.void && g.absent == m.frozen[u] {
			g.absent = index
			m.gone[u] = g
		}
	}
	if m.drawn == len(m.places) {
		m.state, m.frozen = opened, nil
	}
}

// closeFrozen ends the places of users that are frozen. It returns all users of the pre-queue.
func (m *model) closeFrozen() (users []string) {
	for u, index := range m.frozen {
		if w := m.waiting[u]; w != nil && w.index == index {
			m.raise(u, index, m.closedFor)
		}
		users = append(users, u)
	}
	m.frozen = nil
	return users
}

// cohort returns the frozen users in the order of their indexes.
func (m *model) cohort() (users []string) {
	for u := range m.frozen {
		users = append(users, u)
	}
	slices.SortFunc(users, func(a, b string) int { return int(m.frozen[a] - m.frozen[b]) })
	return users
}
