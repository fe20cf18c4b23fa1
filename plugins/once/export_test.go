package once

// Limited reports whether this instance has waited for a limit.
func (e *Effects[T]) Limited() bool { return e.worker.limited.Load() > 0 }
