"""x"""
def builder(s,g,n):
    return None
