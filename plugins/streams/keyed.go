package streams

import (
	"context"
	"sync"
)

// keyed is a lock a key, with no memory of keys that nobody holds or waits for.
type keyed struct {
	mu sync.Mutex
	m  map[int64]*keyLock
}

type keyLock struct {
	held chan struct{} // capacity 1
	refs int           // holder and waiters
}

// lock waits for key and returns what releases it, or ctx's error.
func (k *keyed) lock(ctx context.Context, key int64) (unlock func(), err error) {
	l := k.ref(key)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; k.unref(key, l) }, nil
	case <-ctx.Done():
		k.unref(key, l)
		return nil, ctx.Err()
	}
}

// tryLock returns nil when somebody holds key.
func (k *keyed) tryLock(key int64) (unlock func()) {
	l := k.ref(key)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; k.unref(key, l) }
	default:
		k.unref(key, l)
		return nil
	}
}

func (k *keyed) ref(key int64) *keyLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.m[key]
	if !ok {
		l = &keyLock{held: make(chan struct{}, 1)}
		k.m[key] = l
	}
	l.refs++
	return l
}

func (k *keyed) unref(key int64, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.refs--; l.refs == 0 {
		delete(k.m, key)
	}
}
