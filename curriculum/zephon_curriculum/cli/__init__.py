"""The commands of this distribution, one module each; `zephon` finds them by their entry points."""
