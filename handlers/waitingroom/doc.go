// Package waitingroom keeps the users of an event in a fair queue before a ticket shop. It promotes
// them in order, as many as the shop can serve, and notifies them live.
//
// Package room has all state. The brokers have the connections, and the dispatchers promote. Shop
// and gate are the two ends of the way to the ticket shop.
package waitingroom
