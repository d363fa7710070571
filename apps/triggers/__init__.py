"""What starts tasks by itself."""

# Nudged when a trigger was made or changed, so that schedulers look anew at what is due next.
CHANNEL = "triggers"
