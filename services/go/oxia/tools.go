//go:build tools

// Package tools names the one program this module exists to build: see services/README.md.
package tools

import _ "github.com/oxia-db/oxia/cmd"
