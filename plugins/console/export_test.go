package console

// Impatient makes requests answer at once that an action still runs.
func (p *Plugin) Impatient() { p.server.patience = patience{} }
