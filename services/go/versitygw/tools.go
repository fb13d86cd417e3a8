//go:build tools

// Package tools names the one program this module exists to build: see services/README.md.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
