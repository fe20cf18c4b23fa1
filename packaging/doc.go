// Package packaging tests what the repository ships: the static binary, the container image, the packages, and the stack
// of compose.yaml on real servers. Each is made by its target of the Makefile, looked at, and run the way an operator
// runs it. The Helm chart is tested in the folder chart.
package packaging
