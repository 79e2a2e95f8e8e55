"""Promise: crashes, torn writes, damage: nothing acknowledged is lost or altered in silence."""
