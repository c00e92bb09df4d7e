"""The currencies that prices may be in: the codes of ISO 4217.

Owns the table and the search for what a mistyped code meant; never converts amounts.
"""

import difflib

CURRENCIES = frozenset(
    """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD
    CAD CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS
    GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW
    KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR
    MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR
    SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX
    USD UYU UZS VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG
    """.split()
)
"""Codes of money in use (ISO 4217 list one, maintained by SIX for ISO).

Left out: metals, funds, units of account, and the codes for tests and for no currency, in which
nobody is charged.
"""
COMMON = ("USD", "EUR", "GBP", "CHF", "JPY", "CNY")
"""Offered first among equally near ones."""


def nearest_currencies(written: str, limit: int = 3) -> list[str]:
    """Return the codes most like one that was not found, best first.

    Args:
        written: What the user wrote.
        limit: The most codes to return, at least 1.
    """
    name = written.strip().upper()[:20]

    def unlikeness(code: str) -> tuple[float, int, str]:
        differing = sum(a != b for a, b in zip(code, name, strict=False)) + abs(3 - len(name))
        ratio = difflib.SequenceMatcher(None, code, name).ratio()
        return differing - ratio, 0 if code in COMMON else 1, code

    return sorted(CURRENCIES, key=unlikeness)[:limit]
