package once

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// ledgerKind implements caller.
func (e *Effects[T]) ledgerKind(instance string) ledger.Kind {
	k := ledger.Kind{Name: e.kind.Name, Policy: e.config.policy(e.kind.Repeat, e.kind.Lookup != nil, instance), Limits: e.config.Limits, Results: e.config.Results != ""}
	if e.config.Via == ViaStreams {
		k.Grace = e.config.Grace
	}
	if k.Same = SameJSON; e.kind.Same != nil {
		k.Same = e.same
	}
	return k
}

// call implements caller.
func (e *Effects[T]) call(ctx context.Context, c ledger.Claimed) (a Answer, decoded bool) {
	key := Key{Group: c.Group, ID: c.ID}
	idempotency := e.kind.IdempotencyKey(key)
	if c.Lookup {
		return e.kind.Lookup(ctx, Lookup{Key: key, Idempotency: idempotency, Request: c.Request, LastSent: c.LastSent}), true
	}
	v, err := e.decodeStored(c.Payload)
	if err != nil {
		return Answer{Class: NotSent, Text: fmt.Sprintf("this version of the program can't decode the record, so it did not call: %v", err)}, false
	}
	return e.kind.Call(ctx, Attempt[T]{
		Kind: e.kind.Name, Repeat: e.kind.Repeat, Key: key, Idempotency: idempotency, Value: v, Request: c.Request, Number: c.Number, Headers: c.Headers,
	}), true
}

// decodeStored decodes a stored record. A panic is an error, because no request was made.
func (e *Effects[T]) decodeStored(payload []byte) (v T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it panicked: %v", r)
		}
	}()
	return e.kind.decode(payload)
}

// gated implements caller.
func (e *Effects[T]) gated() bool { return e.kind.Gate != nil }

// ready implements caller.
func (e *Effects[T]) ready() bool { return e.kind.Gate == nil || e.kind.Gate.Ready() }

// take implements caller.
func (e *Effects[T]) take(n int) (may int, wait time.Duration) {
	if e.kind.Gate == nil {
		return n, 0
	}
	return e.kind.Gate.Take(n)
}

// describe implements caller.
func (e *Effects[T]) describe(k ledger.Key, payload []byte) (idempotency, value string) {
	idempotency, value = e.kind.IdempotencyKey(Key{Group: k.Group, ID: k.ID}), textOf(k)
	if e.kind.Describe != nil {
		if v, err := e.kind.decode(payload); err == nil {
			value = e.kind.Describe(v)
		}
	}
	return idempotency, value
}

// keyOf implements caller.
func (e *Effects[T]) keyOf(k Key) string { return e.kind.IdempotencyKey(k) }

// sumOf implements caller.
func (e *Effects[T]) sumOf() func(payload []byte) (int64, bool) {
	if e.kind.Sum == nil {
		return nil
	}
	return func(payload []byte) (int64, bool) {
		v, err := e.kind.decode(payload)
		if err != nil {
			return 0, false
		}
		return e.kind.Sum(v)
	}
}
