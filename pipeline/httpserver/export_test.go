package httpserver

// NewTool is Tool with a limit of connections.
var NewTool = tool
