package pages

// korean has the text of each key of Texts in Korean.
func korean() map[string]string {
	return map[string]string{
		"waiting_room": "대기실", "connecting": "연결하는 중…", "your_place": "내 순서",
		"no_script": "이 페이지를 보려면 자바스크립트를 켜야 합니다. 이미 대기 중이라면 다음 주소에서 순서를 볼 수 있습니다:",

		// The numbers of the queue.
		"opens_in": "시작까지", "your_position": "내 대기 번호", "ahead_of_you": "내 앞 인원", "waiting_in_total": "전체 대기 인원",
		"expected_wait": "예상 대기 시간", "commitment": "추첨 비밀값의 해시입니다. 추첨이 끝나면 이 값으로 결과를 확인할 수 있습니다",
		"progress": "맨 앞까지의 진행 상황", "age": "이 순서는 {time} 전의 정보입니다.",
		"kept_for": "연결이 끊기거나 페이지를 닫아도 {time} 동안 순서가 유지됩니다. 이어서 기다리려면 페이지를 다시 여세요. " +
			"여러 탭에서 열어도 순서는 하나입니다.",
		"less_than_minute": "1분 미만", "unknown": "알 수 없음", "range": "{from} ~ {to}", "wait_until": "{wait} (예상 시각 {time})",

		// The turn.
		"go_to_shop": "지금 예매 페이지로 이동하세요", "back_to_shop": "지금 예매 페이지로 돌아가세요", "time_left": "남은 시간:", "continue_to_shop": "예매 페이지로 이동",
		"keep_open":  "예매 페이지에 들어갈 때까지 이 페이지를 닫지 마세요. 그 전에 연결이 끊기면 차례가 끝납니다.",
		"may_reload": "이 페이지를 새로 고쳐도 차례와 종료 시각은 그대로입니다.",
		"your_turn":  "입장할 차례입니다.", "one_minute": "입장할 차례입니다. 1분 남았습니다.", "more_time": "입장할 차례입니다. 시간이 연장되었습니다.",

		// Buttons and questions.
		"enter_again": "다시 줄 서기", "connect_again": "다시 연결", "leave_queue": "대기 취소", "end_turn": "내 차례 끝내기",
		"stay": "계속 기다리기", "leave": "나가기", "call_me": "내 차례가 되면 알림 받기", "will_call": "차례가 되면 알려 드립니다. 이 페이지를 열어 두세요.",
		"sure_place": "순서를 잃게 되며, 다시 들어오면 맨 뒤에서 기다려야 합니다.",
		"sure_turn":  "차례가 끝나며, 다시 들어오면 맨 뒤에서 기다려야 합니다.",
		"in_shop":    "이 차례로 예매 페이지에 들어가 있습니다. 그곳에서 구매를 마치거나 취소하세요.", "leaving_failed": "나가지 못했습니다. 다시 시도하세요.",

		// What is said while a user waits.
		"in_queue": "대기 중입니다.", "next": "다음 차례입니다.", "ahead": "앞에 {count}명이 있습니다.", "opens_at": "시작 시각은 {time}입니다.",
		"not_open":       "대기실이 아직 열리지 않았습니다.",
		"by_lot":         "대기실이 아직 열리지 않았습니다. 열릴 때 이곳에 있는 모든 이용자의 순서를 추첨으로 정하므로 일찍 와도 유리하지 않습니다.",
		"drawing":        "지금 순서를 추첨하고 있습니다.",
		"on_hold":        "대기 줄이 잠시 멈췄습니다. 순서는 유지됩니다.",
		"closes_soon":    "대기실이 곧 닫힙니다. 새로운 이용자는 들어올 수 없습니다.",
		"sold_out_kept":  "모든 표가 팔렸습니다. 표가 추가될 경우를 위해 순서는 유지됩니다.",
		"seats_held":     "모든 표가 팔렸거나 다른 이용자가 구매하고 있습니다. 일부는 다시 나올 수 있습니다.",
		"not_current":    "대기실에 문제가 있어 지금 보이는 순서는 최신 정보가 아닙니다.",
		"lost":           "연결이 끊겨 다시 연결하는 중…",
		"not_connected":  "연결되지 않았습니다. 곧 다시 시도합니다.",
		"busy":           "대기실이 혼잡합니다. 곧 다시 시도합니다.",
		"too_many":       "이 페이지가 너무 많이 열려 있습니다. 다른 탭을 닫으세요.",
		"reconnected":    "다시 연결되었습니다. 순서가 유지되었습니다.",
		"kept_until":     "{time}까지 순서가 유지됩니다.",
		"was_kept_until": "{time}까지 순서가 유지되었습니다. 지금도 유효한지는 다시 연결되면 알 수 있습니다.",
		"turn_goes_on":   "차례는 계속됩니다.",
		"turn_ends_soon": "예매 페이지에 들어가 있지 않으면, 연결되지 않은 차례는 곧 끝납니다.",

		// Ends and refusals.
		"sold": "구매가 완료되었습니다.", "abandoned": "구매가 취소되어 차례가 끝났습니다.",
		"turn_over": "차례의 시간이 끝났습니다.", "left": "대기를 취소했습니다.", "kicked": "대기 줄에서 제외되었습니다.",
		"room_closed": "대기실이 닫혔습니다.", "sold_out": "모든 표가 팔렸습니다.",
		"away_too_long": "너무 오래 자리를 비워 순서가 사라졌습니다.", "signed_out": "로그인이 만료되었습니다.",
		"no_place": "이 대기 줄에 순서가 없습니다.", "place_ended": "순서가 종료되었습니다.",
		"sign_in": "먼저 로그인한 다음 이 페이지를 다시 여세요.", "to_sign_in": "로그인", "no_room": "이 행사에는 대기실이 없습니다.",
		"no_new_users": "대기실에 새로운 이용자가 들어올 수 없습니다.", "bought": "이 행사에서 허용된 구매를 모두 마쳤습니다.",
		"bad_user": "이 계정으로는 대기실에 들어갈 수 없습니다. 예매처에 문의하세요.",

		// Titles of the document, before the name of the event.
		"title_ahead": "앞에 {count}명", "title_waiting": "대기 중", "title_next": "다음 차례", "title_turn": "입장할 차례",
		"title_on_hold": "일시 중지", "title_sold_out": "매진", "title_not_connected": "연결 안 됨", "title_ended": "종료",
	}
}
