PACKAGES = ()
WAYS = {}
ABSENT = {}
