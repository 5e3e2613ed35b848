"""Imported, it has the order of locks looked at: see `lock_order`."""

import lock_order

lock_order.watch()
