package streams

import (
	"context"
	"sync"
)

// mutexes is one lock per key. A key without holder and waiters takes no memory.
type mutexes struct {
	mu sync.Mutex
	m  map[string]*keyLock
}

type keyLock struct {
	held chan struct{} // capacity 1
	refs int           // holder and waiters
}

// lock waits for key and returns what releases it, or ctx's error.
func (k *mutexes) lock(ctx context.Context, key string) (unlock func(), err error) {
	l := k.ref(key)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; k.unref(key, l) }, nil
	case <-ctx.Done():
		k.unref(key, l)
		return nil, ctx.Err()
	}
}

// tryLock returns nil when key is locked.
func (k *mutexes) tryLock(key string) (unlock func()) {
	l := k.ref(key)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; k.unref(key, l) }
	default:
		k.unref(key, l)
		return nil
	}
}

func (k *mutexes) ref(key string) *keyLock {
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

func (k *mutexes) unref(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.refs--; l.refs == 0 {
		delete(k.m, key)
	}
}
