package httpserver

// NewTool is Tool with a limit of connections.
var NewTool = tool

// StopPoll is the time between two looks of a stop at its requests.
const StopPoll = stopPoll
