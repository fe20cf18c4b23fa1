//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
)

func watch(context.Context, string, io.Writer) error {
	return errors.New("the watchers of jobs need Linux")
}
