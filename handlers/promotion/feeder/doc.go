// Package feeder puts payouts of the ledger into their streams again when their queue location says
// that they are in none. It also keeps the streams' active set, and measures what waits in the
// ledger.
//
// A control loop reads the promotions that may have something to do and are not paused. For each it
// enqueues payouts that are not queued, payouts whose stream was lost, and payouts that are
// overdue. The loop is the one mechanism for overflow, rebuild and recovery. At most one instance
// feeds a promotion at a time: it holds a lease in the ledger. The feeder also gives free places on
// the active set to the promotions that wait.
//
// Besides the feeder only package payout writes into streams.
package feeder
