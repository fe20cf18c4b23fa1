package pages

// Texts returns the English texts of the page, by the key that a translation has. A name in braces is
// replaced by the page.
func Texts() map[string]string {
	return map[string]string{
		"waiting_room": "Waiting room", "connecting": "Connecting…", "your_place": "Your place",
		"no_script": "This page needs JavaScript. If you have a place already, it is at this address:",

		// The numbers of the queue.
		"opens_in": "Opens in", "your_position": "Your position", "ahead_of_you": "Ahead of you", "waiting_in_total": "Waiting in total",
		"expected_wait": "Expected wait", "commitment": "Hash of the draw's secret: with it you can check the draw afterwards",
		"progress": "Progress to the front", "age": "This position is {time} old.",
		"kept_for": "If the connection is lost, or you close this page, your place is kept for {time}. Open the page again to continue. " +
			"You may open it in several tabs: you have one place.",
		"less_than_minute": "less than a minute", "unknown": "unknown", "range": "{from} to {to}", "wait_until": "{wait} (about {time})",

		// The turn.
		"go_to_shop": "Go to the shop now", "back_to_shop": "Go back to the shop now", "time_left": "Time left:", "continue_to_shop": "Continue to the shop",
		"keep_open":  "Keep this page open until you are in the shop: before that, your turn ends when its connection is lost.",
		"may_reload": "You may reload this page: your turn and its end stay the same.",
		"your_turn":  "It is your turn.", "one_minute": "It is your turn. One minute is left.", "more_time": "It is your turn. You have more time now.",

		// Buttons and questions.
		"enter_again": "Enter again", "connect_again": "Connect again", "leave_queue": "Leave the queue", "end_turn": "End my turn",
		"stay": "Stay", "leave": "Leave", "call_me": "Call me when it is my turn", "will_call": "You will be called. Keep this page open.",
		"sure_place": "You lose your place, and you can only enter again at the end.",
		"sure_turn":  "Your turn ends, and you can only enter again at the end.",
		"in_shop":    "You are in the shop with this turn: finish or cancel your purchase there.", "leaving_failed": "Leaving failed. Try again.",

		// What is said while a user waits.
		"in_queue": "You are in the queue.", "next": "You are next.", "ahead": "{count} ahead of you.", "opens_at": "It opens at {time}.",
		"not_open":       "The waiting room is not open yet.",
		"by_lot":         "The waiting room is not open yet. All users who are here at the opening get their places by lot: an early arrival is no advantage.",
		"drawing":        "The places are drawn now.",
		"on_hold":        "The queue is on hold. Your place is kept.",
		"closes_soon":    "The waiting room closes soon. New users cannot enter.",
		"sold_out_kept":  "All tickets are sold. Your place is kept in case more become available.",
		"seats_held":     "All tickets are sold or held by users in the shop. Some of those may come back.",
		"not_current":    "Your position is not current: the waiting room has a problem.",
		"lost":           "Connection lost, connecting again…",
		"not_connected":  "Not connected, trying again soon.",
		"busy":           "The waiting room is busy, trying again soon.",
		"too_many":       "You have this page open too often: close other tabs.",
		"reconnected":    "Connected again. Your place was kept.",
		"kept_until":     "Your place is kept until {time}.",
		"was_kept_until": "Your place was kept until {time}: whether you still have it shows when you are connected again.",
		"turn_goes_on":   "Your turn goes on.",
		"turn_ends_soon": "Your turn ends soon without a connection, unless you are in the shop.",

		// Ends and refusals.
		"sold": "Your purchase is complete.", "abandoned": "Your purchase was cancelled, and your turn has ended.",
		"turn_over": "The time of your turn is over.", "left": "You have left the queue.", "kicked": "You were removed from the queue.",
		"room_closed": "The waiting room is closed.", "sold_out": "All tickets are sold.",
		"away_too_long": "You were away for too long, and your place is gone.", "signed_out": "Your sign-in has expired.",
		"no_place": "You have no place in this queue.", "place_ended": "Your place has ended.",
		"sign_in": "Sign in first, then open this page again.", "to_sign_in": "Sign in", "no_room": "There is no waiting room for this event.",
		"no_new_users": "The waiting room takes no new users.", "bought": "You have made all purchases that this event allows.",
		"bad_user": "Your account can't enter a waiting room. Please write to the shop.",

		// Titles of the document, before the name of the event.
		"title_ahead": "{count} ahead", "title_waiting": "Waiting", "title_next": "You are next", "title_turn": "Your turn",
		"title_on_hold": "On hold", "title_sold_out": "Sold out", "title_not_connected": "Not connected", "title_ended": "Ended",
	}
}
