"""The words that synthetic text is made of.

Common English words of a to z, the commonest first. Each was checked to be one token, with and without a
space before it, in a sentencepiece vocabulary of 32,000 and in a byte-level BPE vocabulary of 131,072 (those
of Mistral 7B v0.1 and of Mistral NeMo), so that the length of a text in tokens is close to its length in
words wherever the real counts are not known.

`"the"` stays first: a text of all words has no space before its first word, and this one counts the same
without.
"""

from typing import Final

_WORDS: Final = """
the of and to in is it you that he was for on are with as his they be at one have this from or had by hot
but some what there we can out other were all your when up use word how an each she which do time if will
way about many then write like so her long make thing see him two has look more day could go come did my
sound no most number who over know water than call first people may down side now find any new work part
take get place made live where after back only round man year show every good me our under name very through
just form think say help low line before turn same mean move right boy old too does set three air well also
play small end put home read hand port large add even land here must big high such follow act why ask men
change light kind off need house picture try us again point mother world build self father head stand own
page should country found answer school learn plant cover food sun four let keep never last door between
city tree cross since hard start story far sea draw left late run while press close night real life stop
open next white children begin got walk example paper always both mark book letter until mile river car care
second group room friend idea fish once base cut watch color face wood main plain girl ready ever red list
though talk bird body dog family direct pose leave measure state product black short class wind question
complete ship area half rock order fire piece pass top king size best hour true am step hold west ground
interest fast five sing listen six table less ten simple lay pattern center love person serve road map rule
pull notice voice fall power town fly unit dark machine note wait plan figure star box field rest correct
able done drive stood front week final green oh quick sleep free strong special mind clear tail fact inch
lot course wheel full force blue object surface deep foot test record boat common gold possible plane age
ago ran check game shape yes miss bed fill weight language grand ball wave heart present engine position arm
wide material window store train leg wall catch mount sky board joy sat written glass job edge sign visit
soft fun gas month finish row mouth symbol except seed join clean break yard rise bad touch team wire cost
wear equal sent fit flow bank collect save control ear else case middle son moment scale spring child speed
method organ pay section cloud stone tiny design bottom key iron single stick flat skin hole root raise push
third held floor result burn hill safe cat type law bit copy phrase roll value beat natural view chair rich
process noon element hit student party woman wing create compare string bell stream clock mine enter major
search send allow print spot suit current rose master track parent shore sheet connect post original share
station bread charge bar segment market degree reply support range path log shell skill season branch match
especially forward score apple led card band win condition feed tool total basic double continue block chart
hat success company event term born level gather shop throw shine property column select gray repeat require
prepare account action active address agent amount art article author balance border bridge brief button
chain circle client club code comment context contract court cup custom cycle data date delay detail device
display document driver editor effect energy error export extra factor failure feature fee file film focus
folder frame future gate global grade graph guard health height hero history image import index input issue
item journal label layer leaf legal library limit link local loss mail manager margin media member memory
menu message mobile model module network news online option output owner package panel park patient payment
phone photo phase pipe platform player policy pool price prime profit program progress project quality radio
random rate reason region relation relative release report request resource response return review ring role
route sample scene schedule screen script secret security series server service session shadow shift signal
site source space square staff stage standard stock storage structure style subject summary switch system
target task tax title topic transfer update user version video vision volume vote worker writer zone
"""

VOCABULARY: Final[tuple[str, ...]] = tuple(_WORDS.split())
