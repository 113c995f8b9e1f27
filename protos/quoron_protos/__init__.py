"""The wire: message definitions, the code generated from them, and the exceptions all packages share."""
