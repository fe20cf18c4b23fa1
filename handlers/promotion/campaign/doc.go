// Package campaign answers what an operator asks about promotions and payouts, and changes them. The commands of
// the plugin and the pages of its console both use it, so that they say the same.
package campaign
